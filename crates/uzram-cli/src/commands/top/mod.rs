//! `uzram top`: the disks of all servers on a full screen, once a second.
//!
//! The screen needs nothing but a terminal that moves its cursor, so it works over ssh. What it cannot
//! show on such a terminal, `uzram stat --watch` prints in lines.

mod model;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::{StateAt, disks};
use crate::args::TopArgs;
use crate::failure::{Failure, Result};
use crate::signals::Signals;
use model::Model;

/// Seconds between two looks, at least and at most.
const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 3600.0;
/// Longest wait for a key before signals are looked at.
const KEY_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the command until a key or a signal ends it.
pub fn run(state: StateAt<'_>, args: &TopArgs) -> Result {
    let seconds = args.delay;
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        let text = format!("--delay {seconds}: must be {SECONDS_MIN} to {SECONDS_MAX} seconds");
        return Err(Failure::Usage(text));
    }
    check_terminal()?;
    let state = state.open_to_ask()?;
    let delay = Duration::from_secs_f64(seconds);
    let mut signals = Signals::catch(false)?;
    let mut screen = Screen(ratatui::try_init().map_err(failed)?);
    let mut model = Model::default();
    let mut selected = TableState::default().with_selected(0);
    let mut due = Instant::now();
    let mut is_stale = false;
    while !signals.is_ending() {
        if Instant::now() >= due {
            model.look(Instant::now(), disks(&state)?);
            due = Instant::now() + delay;
            is_stale = true;
        }
        // Not at each look for signals: to lay out a hundred disks takes two milliseconds.
        if std::mem::take(&mut is_stale) {
            let draw = |frame: &mut ratatui::Frame<'_>| view::draw(frame, &model, &mut selected);
            screen.0.draw(draw).map_err(failed)?;
        }
        let left = due.saturating_duration_since(Instant::now());
        if !event::poll(left.min(KEY_TIMEOUT)).map_err(failed)? {
            continue;
        }
        is_stale = true;
        if let Event::Key(key) = event::read().map_err(failed)? {
            match asked(key) {
                Asked::End => break,
                Asked::Previous => selected.select_previous(),
                Asked::Next => selected.select_next(),
                Asked::Nothing => {}
            }
        }
    }
    Ok(())
}

/// The screen, given back at the end, also after an error.
struct Screen(ratatui::DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn failed(error: std::io::Error) -> Failure {
    Failure::Failed(format!("top: terminal: {error}"))
}

fn check_terminal() -> Result {
    const REMEDY: &str = "uzram stat --watch prints lines instead";
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let text = format!("top: needs a terminal for its screen and keys; {REMEDY}");
        return Err(Failure::Failed(text));
    }
    let kind = std::env::var("TERM").unwrap_or_default();
    if ["", "dumb"].contains(&kind.as_str()) {
        let text = format!("top: TERM={kind}: a terminal that moves no cursor; {REMEDY}");
        return Err(Failure::Failed(text));
    }
    Ok(())
}

enum Asked {
    End,
    Previous,
    Next,
    Nothing,
}

fn asked(key: KeyEvent) -> Asked {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Asked::End,
        KeyCode::Char('q') | KeyCode::Esc => Asked::End,
        KeyCode::Up | KeyCode::Char('k') => Asked::Previous,
        KeyCode::Down | KeyCode::Char('j') => Asked::Next,
        _ => Asked::Nothing,
    }
}
