//! The screen: all disks in a table, and below it the memory and the times of the one that is selected.
//! Columns and parts without room are left out, the least important first; nothing is wrapped.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use uzram_server::size::human;

use super::model::{Figures, Model};
use crate::commands::{number, quantile, ratio};

/// A column: its title, its width, and its cell.
type Column = (&'static str, u16, fn(&Figures) -> String);

/// With a blank between them they take 77 characters; the first two take 19.
const COLUMNS: [Column; 9] = [
    ("NAME", 12, |disk| disk.name.clone()),
    ("RATIO", 6, |disk| ratio(disk.attributes.get("compr_ratio"))),
    ("MEMORY", 9, |disk| size(disk, "mem_used_total")),
    ("READ/S", 7, |disk| per_second(disk.per_second[0])),
    ("WRITE/S", 7, |disk| per_second(disk.per_second[1])),
    ("DATA", 9, |disk| size(disk, "orig_data_size")),
    ("R P99", 7, |disk| quantile(&disk.latencies[0], 0.99)),
    ("W P99", 7, |disk| quantile(&disk.latencies[1], 0.99)),
    ("FRAG", 5, |disk| {
        let percent = disk.fragmentation_percent();
        percent.map_or("-".into(), |percent| format!("{percent:.0}%"))
    }),
];
/// Lines of the part about one disk.
const DETAIL_LINES: u16 = 6;
/// Lines of the screen that leave room for it.
const LINES_FOR_DETAIL: u16 = 12;
/// Colours and letters of the states of memory: a terminal without colours has the letters.
const STATES: [(Color, &str); 4] = [
    (Color::Green, "c"),
    (Color::Red, "f"),
    (Color::Blue, "s"),
    (Color::Yellow, "t"),
];

/// Draws `model`.
pub fn draw(frame: &mut Frame<'_>, model: &Model, selected: &mut TableState) {
    let has_detail = frame.area().height >= LINES_FOR_DETAIL && !model.disks.is_empty();
    let detail_lines = if has_detail { DETAIL_LINES } else { 0 };
    let [head, table, detail, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(detail_lines),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(summary(model), head);
    if model.disks.is_empty() {
        frame.render_widget(Line::from("No disk is served."), table);
    } else {
        disks(frame, model, selected, table);
    }
    let shown = selected
        .selected()
        .unwrap_or(0)
        .min(model.disks.len().saturating_sub(1));
    if let Some(disk) = model.disks.get(shown).filter(|_| has_detail) {
        about(frame, disk, detail);
    }
    let foot_text = match model.failures.first() {
        Some(failure) => Line::from(failure.as_str()).red(),
        None => Line::from("q ends  up, down select").dim(),
    };
    frame.render_widget(foot_text, foot);
}

fn summary(model: &Model) -> Line<'static> {
    let sum = |name: &str| -> u64 {
        let values = model
            .disks
            .iter()
            .map(|disk| number(&disk.attributes, name));
        values.fold(0, u64::saturating_add)
    };
    let (data, memory) = (sum("orig_data_size"), sum("mem_used_total"));
    let saved = match memory {
        0 => String::new(),
        _ => format!(" ({:.2})", data as f64 / memory as f64),
    };
    let count = model.disks.len();
    let disks = if count == 1 { "disk" } else { "disks" };
    let text = format!(
        "uzram: {count} {disks}, {} in {}{saved}",
        human(data),
        human(memory)
    );
    Line::from(text).bold()
}

fn disks(frame: &mut Frame<'_>, model: &Model, selected: &mut TableState, area: Rect) {
    let mut end = 0;
    let fits = COLUMNS.iter().take_while(|column| {
        end += column.1 + 1;
        end <= area.width + 1
    });
    // The name stands even where it is cut.
    let count = fits.count().max(1);
    let columns = &COLUMNS[..count];
    let cell = |column: &Column, text: String| match column.0 {
        "NAME" => Cell::new(text),
        _ => Cell::new(Line::from(text).right_aligned()),
    };
    let titles = columns.iter().map(|column| cell(column, column.0.into()));
    let titles = Row::new(titles).style(Modifier::BOLD);
    let rows = model.disks.iter().map(|disk| {
        let cells = columns.iter().map(|column| cell(column, column.2(disk)));
        Row::new(cells.collect::<Vec<_>>())
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.1));
    let table = Table::new(rows, widths)
        .header(titles)
        .row_highlight_style(Modifier::REVERSED);
    frame.render_stateful_widget(table, area, selected);
}

/// The selected disk.
fn about(frame: &mut Frame<'_>, disk: &Figures, area: Rect) {
    let mut states: Vec<Span<'_>> = vec!["memory ".into()];
    for ((name, bytes), (color, letter)) in disk.memory().into_iter().zip(STATES) {
        states.push(Span::styled(format!(" {letter} "), Style::new().fg(color)));
        states.push(format!("{name} {}", human(bytes)).into());
    }
    let of = |name: &str| number(&disk.attributes, name);
    let times = |what: &str, of: usize| {
        let shown = |share| quantile(&disk.latencies[of], share);
        let (half, most, nearly_all) = (shown(0.5), shown(0.9), shown(0.99));
        Line::from(format!(
            "{what:<7} p50 {half}  p90 {most}  p99 {nearly_all}"
        ))
    };
    let lines = vec![
        Line::from(disk.name.as_str()).bold(),
        bar(disk, area.width),
        Line::from(states),
        times("reads", 0),
        times("writes", 1),
        Line::from(format!(
            "pages   {} same-filled, {} incompressible",
            of("same_pages"),
            of("huge_pages")
        )),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// The states of memory as shares of a line.
fn bar(disk: &Figures, width: u16) -> Line<'static> {
    let memory = disk.memory();
    let all: u64 = memory
        .iter()
        .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let place = |bytes: u64| {
        let share = bytes as f64 / all.max(1) as f64;
        (share * f64::from(width)).round() as usize
    };
    let mut below = 0u64;
    let spans = memory
        .iter()
        .zip(STATES)
        .map(|((_, bytes), (color, letter))| {
            let start = place(below);
            below = below.saturating_add(*bytes);
            let length = place(below) - start;
            Span::styled(letter.repeat(length), Style::new().fg(color))
        });
    Line::from(spans.collect::<Vec<_>>())
}

fn size(disk: &Figures, name: &str) -> String {
    human(number(&disk.attributes, name))
}

/// A rate in seven characters.
fn per_second(rate: f64) -> String {
    match rate {
        0.0..10_000.0 => format!("{rate:.0}"),
        10_000.0..10_000_000.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.0}M", rate / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::disk;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};

    fn lines(model: &Model, width: u16, height: u16, selected: usize) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut selected = TableState::default().with_selected(selected);
        terminal
            .draw(|frame| draw(frame, model, &mut selected))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        let rows = cells.chunks(usize::from(width).max(1));
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect();
        rows.map(line).collect()
    }

    fn model(disks: &[&str]) -> Model {
        let mut model = Model::default();
        let start = Instant::now();
        let look = |reads| disks.iter().map(|name| disk(name, reads)).collect();
        model.look(start, look(1000));
        model.look(start + Duration::from_secs(1), look(13_000));
        model
    }

    #[test]
    fn eighty_columns_have_all() {
        let shown = lines(&model(&["scratch", "swap0"]), 80, 24, 0);
        assert_eq!(
            shown[0].trim_end(),
            "uzram: 2 disks, 240 MiB in 80 MiB (3.00)"
        );
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(&shown[1]),
            "NAME RATIO MEMORY READ/S WRITE/S DATA R P99 W P99 FRAG"
        );
        assert_eq!(
            words(&shown[2]),
            "scratch 4.00 40 MiB 12k 0 120 MiB 4.1 us - 25%"
        );
        let text = shown.join("\n");
        for said in [
            "c compressed 30 MiB f fragments 10 MiB s spare 2 MiB t tables 1 MiB",
            "reads   p50 3.6 us  p90 ",
            "pages   7 same-filled, 3 incompressible",
        ] {
            assert!(text.contains(said), "{said}\n{text}");
        }
        let bar = shown.iter().find(|line| line.starts_with("cc")).unwrap();
        assert_eq!(bar.matches('c').count(), 56, "{bar}");
        assert_eq!(bar.trim_end().chars().count(), 80);
    }

    #[test]
    fn small_terminals_have_what_fits_and_any_size_is_drawn() {
        let all = model(&["a-name-of-thirty-two-characters0", "b"]);
        let narrow = lines(&all, 20, 10, 1);
        assert_eq!(narrow[1].trim_end(), "NAME          RATIO");
        assert_eq!(narrow[2].trim_end(), "a-name-of-th   4.00");
        for width in 0..90 {
            for height in [0, 1, 2, 3, 5, 11, 12, 13, 40] {
                lines(&all, width, height, 7);
                lines(&Model::default(), width, height, 0);
            }
        }
        let none = lines(&Model::default(), 80, 24, 0).join("\n");
        assert!(none.contains("No disk is served."), "{none}");
    }

    #[test]
    fn of_more_disks_than_lines_the_selected_one_is_seen() {
        let names: Vec<String> = (0..100).map(|number| format!("disk{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = lines(&model(&names), 80, 24, 77).join("\n");
        assert_eq!(text.matches("disk77").count(), 2, "{text}");
    }
}
