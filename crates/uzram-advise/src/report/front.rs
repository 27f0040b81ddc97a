//! The Pareto front: the points that no other beats in two things at once.

/// Costs this close, as a share of the smaller one, are the same: less is noise.
const SAME_COST: f64 = 0.03;

/// The points, each a cost and a second value, that no other beats: none costs clearly less, or
/// about the same with less of the second value.
pub fn front(points: &[(f64, f64)]) -> Vec<bool> {
    let beats = |other: &(f64, f64), own: &(f64, f64)| {
        let is_no_dearer = other.0 <= own.0 * (1.0 + SAME_COST);
        let is_cheaper = other.0 < own.0;
        (is_no_dearer && other.1 < own.1) || (is_cheaper && other.1 <= own.1)
    };
    let on = points
        .iter()
        .map(|own| !points.iter().any(|other| beats(other, own)));
    on.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_nobody_beats_in_both() {
        let points = [
            (1.0, -50.0),
            // Dearer and worse.
            (2.0, -45.0),
            (9.0, -80.0),
            // Dearer, as good.
            (10.0, -80.0),
            // The same twice.
            (9.0, -80.0),
            // Cheaper by noise alone, and worse.
            (8.9, -79.0),
        ];
        assert_eq!(front(&points), [true, false, true, false, true, false]);
        assert_eq!(front(&[]), [false; 0]);
    }

    #[test]
    fn of_any_points_some_are_on_it() {
        // Each a little cheaper and a little worse than the one before.
        let points: Vec<(f64, f64)> = (0..50).map(f64::from).map(|n| (100.0 - n, n)).collect();
        assert!(front(&points)[0]);
    }
}
