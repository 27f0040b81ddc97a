//! Axes: values to percentages of a chart's width or height, round ticks, and numbers as text.

use crate::report::table::decimals;

/// Ticks on an axis at most: they have to fit beside each other on a phone.
const TICKS_MAX: usize = 6;
/// Points whose greatest value is so many times their least are drawn on a logarithmic scale.
const LOGARITHMIC_FROM: f64 = 30.0;
/// The same for bars, whose length says more if it starts at zero.
const LOGARITHMIC_BARS_FROM: f64 = 300.0;

/// An axis: it places values between 0 and 100 %.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    logarithmic: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// From zero up to at least `high`.
    pub(super) fn from_zero(high: f64) -> Axis {
        let high = if high > 0.0 && high.is_finite() {
            high
        } else {
            1.0
        };
        let step = round_step(high / 4.0);
        let steps = (high / step).ceil().max(1.0);
        let ticks = (0..=steps as usize).map(|n| n as f64 * step).collect();
        Axis {
            logarithmic: false,
            low: 0.0,
            high: steps * step,
            ticks,
        }
    }

    /// Around the positive values `low` to `high`, logarithmic, with a little air at both ends.
    pub(super) fn logarithmic(low: f64, high: f64) -> Axis {
        let low = if low > 0.0 && low.is_finite() {
            low
        } else {
            1e-3
        };
        let high = if high.is_finite() { high.max(low) } else { low };
        let air = (high / low).ln().max(0.02) * 0.06;
        let (low, high) = (low * (-air).exp(), high * air.exp());
        Axis {
            logarithmic: true,
            low,
            high,
            ticks: logarithmic_ticks(low, high),
        }
    }

    /// For points: from zero, or logarithmic where the smaller ones could not be told apart.
    pub(super) fn for_points(low: f64, high: f64) -> Axis {
        match low > 0.0 && high / low >= LOGARITHMIC_FROM {
            true => Axis::logarithmic(low, high),
            false => Axis::from_zero(high),
        }
    }

    /// For bars: from zero, or logarithmic where the shorter ones would not be seen.
    pub(super) fn for_bars(low: f64, high: f64) -> Axis {
        match low > 0.0 && high / low >= LOGARITHMIC_BARS_FROM {
            true => Axis::logarithmic(low, high),
            false => Axis::from_zero(high),
        }
    }

    /// Around `low` to `high`, for points whose distance from zero says nothing.
    pub(super) fn around(low: f64, high: f64) -> Axis {
        if !(low.is_finite() && high > low && high.is_finite()) {
            return Axis::from_zero(high);
        }
        let step = round_step((high - low) / 4.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let ticks =
            (0..=(last - first) as usize).map(|n| round_to((first + n as f64) * step, step));
        Axis {
            logarithmic: false,
            low: first * step,
            high: last * step,
            ticks: ticks.collect(),
        }
    }

    /// For ratios: one is always on it.
    pub(super) fn for_ratios(low: f64, high: f64) -> Axis {
        let mut axis = Axis::logarithmic(low.min(1.0), high.max(1.0));
        if !axis.ticks.contains(&1.0) {
            axis.ticks.push(1.0);
        }
        axis
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// Whether a value has a place of its own here.
    pub(super) fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The part of the way along the axis, 0 to 100.
    pub(super) fn percent(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let percent = if part.is_finite() { part * 100.0 } else { 0.0 };
        // Two decimals of a percent are less than a pixel.
        (percent.clamp(0.0, 100.0) * 100.0).round() / 100.0
    }

    /// The places of the ticks, with their texts.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        // "1000" and "3000" run into each other in a narrow chart, "1k" and "3k" do not.
        let is_short = |tick: &f64| tick.abs() < 1e3 || tick % 500.0 == 0.0;
        let thousands_from = match self.ticks.iter().all(is_short) {
            true => 1e3,
            false => 1e4,
        };
        let texts = self.ticks.iter();
        texts.map(move |&tick| (self.percent(tick), tick_text(tick, thousands_from)))
    }
}

/// The step of 1, 2 or 5 times a power of ten next above `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0];
    let fits = factor
        .into_iter()
        .find(|factor| factor * power >= least * 0.999);
    fits.unwrap_or(10.0) * power
}

fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    const WITHIN_A_DECADE: [&[f64]; 4] = [
        &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
        &[1.0, 2.0, 3.0, 5.0],
        &[1.0, 3.0],
        &[1.0],
    ];
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    for digits in WITHIN_A_DECADE {
        let ticks = decades
            .clone()
            .flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)));
        let ticks: Vec<f64> = ticks.filter(|tick| (low..=high).contains(tick)).collect();
        if (3..=TICKS_MAX).contains(&ticks.len()) {
            return ticks;
        }
    }
    if high / low > 100.0 {
        let every = ((high / low).log10() / 4.0).ceil() as usize;
        let decades = decades.step_by(every).map(|decade| 10f64.powi(decade));
        return decades.filter(|tick| (low..=high).contains(tick)).collect();
    }
    // Less than a doubling: evenly spaced numbers are round enough.
    let step = round_step((high - low) / 4.0);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last)
        .map(|n| round_to(n as f64 * step, step))
        .collect()
}

/// Takes off what binary fractions add to multiples of 0.1.
fn round_to(value: f64, step: f64) -> f64 {
    let places = (-step.log10().floor()).max(0.0) as i32;
    let scale = 10f64.powi(places);
    (value * scale).round() / scale
}

/// A short text; numbers of `thousands_from` and more have a `k`.
fn tick_text(value: f64, thousands_from: f64) -> String {
    match value.abs() {
        v if v >= 1_000_000.0 => format!("{}M", short(value / 1e6)),
        v if v >= thousands_from => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

/// At most three decimals, none that says nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A figure: as many decimals as in the terminal, thousands apart by a narrow blank.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.*}", decimals(value));
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("\u{2212}", digits),
        None => ("", whole),
    };
    let mut grouped = String::from(sign);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 && digits.len() > 4 {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    if !fraction.is_empty() && fraction.bytes().any(|digit| digit != b'0') {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

/// A ratio: three decimals while they mean something.
pub(super) fn ratio(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_few_and_on_the_axis() {
        let ranges = [
            (0.97, 1.06),
            (0.5, 3.0),
            (0.9, 42.0),
            (1.0, 1.0),
            (3.0, 3e7),
            (1e-3, 1e9),
            (160.0, 170.0),
        ];
        for (low, high) in ranges {
            let axis = Axis::logarithmic(low, high);
            let ticks: Vec<_> = axis.ticks().collect();
            assert!(
                (1..=TICKS_MAX + 1).contains(&ticks.len()),
                "{low}..{high}: {ticks:?}"
            );
            assert!(
                ticks.windows(2).all(|pair| pair[0].0 < pair[1].0),
                "{ticks:?}"
            );
            assert!(axis.percent(low) > 0.0 && axis.percent(high) < 100.0);
        }
        for high in [0.0, 1e-9, 0.07, 1.0, 99.9, 4e12, f64::NAN, f64::INFINITY] {
            let ticks = Axis::from_zero(high).ticks().count();
            assert!((2..=TICKS_MAX).contains(&ticks), "{high}: {ticks}");
        }
    }

    #[test]
    fn ticks_of_thousands_are_short() {
        let texts = |axis: Axis| axis.ticks().map(|(_, text)| text).collect::<Vec<_>>();
        let wide = texts(Axis::logarithmic(900.0, 600_000.0));
        assert_eq!(wide, ["1k", "3k", "10k", "30k", "100k", "300k"]);
        assert_eq!(
            texts(Axis::from_zero(1900.0)),
            ["0", "500", "1k", "1.5k", "2k"]
        );
        let near = texts(Axis::around(985.0, 1015.0));
        assert!(near.contains(&"1000".to_owned()), "{near:?}");
    }

    #[test]
    fn one_is_on_every_axis_of_ratios() {
        for (low, high) in [(1.02, 1.05), (20.0, 43.0), (0.01, 0.02)] {
            let axis = Axis::for_ratios(low, high);
            assert!(axis.ticks().any(|(_, text)| text == "1"), "{low}..{high}");
            assert!((0.0..=100.0).contains(&axis.percent(1.0)));
        }
    }

    #[test]
    fn nothing_leaves_the_axis() {
        let axis = Axis::from_zero(10.0);
        for value in [-5.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!((0.0..=100.0).contains(&axis.percent(value)), "{value}");
        }
    }

    #[test]
    fn numbers_are_grouped_and_lose_decimals_that_say_nothing() {
        assert_eq!(number(159_584.9), "159\u{202f}585");
        assert_eq!(number(9_999.0), "9999");
        assert_eq!(number(42.71), "42.7");
        assert_eq!(number(3.0), "3");
        assert_eq!(number(-1234.0), "\u{2212}1234");
        assert_eq!(tick_text(150_000.0, 1e4), "150k");
        assert_eq!(tick_text(0.5, 1e4), "0.5");
        assert_eq!(ratio(1.0195), "1.020");
    }
}
