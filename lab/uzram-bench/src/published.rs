//! Published figures of others: the tables in `data`, kept apart from the figures that are measured here.
//!
//! Published figures come from other machines: orders and shapes compare, absolute values do not. Names
//! of their cases or variants have a part that begins with [`PREFIX`].

use crate::report::{Basis, Block, Column, Figure};

/// A part of the name of every published case or variant begins with this.
pub(crate) const PREFIX: &str = "published";

/// A table: its first line names the fields of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table(&'static str);

impl Table {
    /// Per-CPU streams: S. Senozhatsky, "zram: user per-cpu compression streams", linux-kernel, March and
    /// May 2016: zram of 3 GB with lzo, ext4, 4 x86-64 CPUs, a fresh device for each run of
    /// `iozone -t T -R -r (8*T)K -s ((3G/T - 10%)/1M)M -I +Z`.
    pub(crate) const STREAMS: Table = Table(include_str!("../data/streams-2016.csv"));

    /// Slot locks: W. Yang, "zram: use entry-level locks" (later "replace global tb_lock with fine grain
    /// lock"), linux-kernel, 2014: a Core2 Q8400, 4 streams, lzo; zram of 1 GB with ext4 under
    /// `iozone -t 4 -R -r 16K -s 200M -I +Z`; means of 10 runs.
    pub(crate) const LOCKS_IOZONE: Table = Table(include_str!("../data/locks-iozone-2014.csv"));

    /// The same change on a raw device of 10 MB under fio with `bs=32k randrepeat=1 randseed=100
    /// refill_buffers scramble_buffers=1 direct=1 loops=3000 numjobs=4`.
    pub(crate) const LOCKS_FIO: Table = Table(include_str!("../data/locks-fio-2014.csv"));

    /// The move to the crypto compress interface, May 2016: fio, 1 to 10 jobs, 4 CPUs, lzo; reads and
    /// writes added up.
    pub(crate) const INTERFACE: Table = Table(include_str!("../data/interface-2016.csv"));

    /// The kernel's swap calls under pmbench, 2017: means by path.
    pub(crate) const SWAP: Table = Table(include_str!("../data/swap-2017.csv"));

    /// Allocators under zpool: A. Badmaev and V. Wool, "mm: add ztree - new allocator for use via zpool
    /// API", linux-mm, March 2022: an arm64 virtual machine.
    pub(crate) const ALLOCATORS: Table = Table(include_str!("../data/allocators-2022.csv"));

    /// The numbers of `fields` in each row in which every field of `keys` has its value.
    pub(crate) fn find<const N: usize>(
        &self,
        keys: &[(&str, &str)],
        fields: [&str; N],
    ) -> Vec<[f64; N]> {
        let mut rows = self.0.lines().map(|line| line.split(',').collect());
        let head: Vec<&str> = rows.next().unwrap_or_default();
        let place = |field: &str| head.iter().position(|name| *name == field);
        let is_it = |row: &Vec<&str>| {
            let mut keys = keys.iter();
            keys.all(|(field, value)| place(field).is_some_and(|at| row[at] == *value))
        };
        let number = |row: &[&str], field| place(field).and_then(|at| row[at].parse().ok());
        let rows = rows.filter(is_it);
        let numbers = rows.map(|row| fields.map(|field| number(&row, field).unwrap_or(f64::NAN)));
        numbers.collect()
    }
}

/// Takes out of `blocks` what nobody asked for: judgements of aims, and all that was published.
pub(crate) fn keep_asked(aims: bool, published: bool, blocks: &mut [Block]) {
    for block in blocks {
        block.claims.retain(|claim| match claim.basis {
            Basis::Aim => aims,
            Basis::Published => published,
        });
        if !published {
            without_published(block);
        }
    }
}

fn without_published(block: &mut Block) {
    let is_measured = |name: &str| !is_published(name);
    let results = &mut block.results;
    results.retain(|row| is_measured(&row.case) && is_measured(&row.variant));
    block.notes.retain(|note| !is_about_published(note));
    for matrix in &mut block.matrices {
        matrix.columns.retain(|column| !is_of_published(column));
    }
    block.matrices.retain(|matrix| !matrix.columns.is_empty());
}

fn is_about_published(note: &str) -> bool {
    note.starts_with(PREFIX) || note.contains(", published:")
}

fn is_of_published(column: &Column) -> bool {
    match &column.figure {
        Figure::Median { of, .. } | Figure::Range { of, .. } => is_published(of),
        _ => false,
    }
}

fn is_published(name: &str) -> bool {
    name.split('/').any(|part| part.starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Claim, Matrix, Measured, Standing};
    use crate::sample::Series;

    #[test]
    fn every_field_that_is_asked_for_is_a_number() {
        let streams = Table::STREAMS;
        let columns = ["max_streams_4", "max_streams_8", "per_cpu_streams"];
        for threads in 1..=10 {
            let threads: &str = &threads.to_string();
            let rows = streams.find(&[("threads", threads)], columns);
            assert_eq!(rows.len(), 16);
            assert!(rows.as_flattened().iter().all(|value| *value > 0.0));
        }
        let rewrite = streams.find(&[("threads", "3"), ("test", "rewrite")], columns);
        assert_eq!(rewrite, [[3_402_447.88, 3_415_685.88, 5_054_705.38]]);
        assert!(streams.find(&[("test", "none")], columns).is_empty());
        let columns = ["base_rwlock_table_kbps", "bit_spinlock_kbps"];
        for (table, rows) in [(Table::LOCKS_IOZONE, 11), (Table::LOCKS_FIO, 4)] {
            let found = table.find(&[], columns);
            assert_eq!(found.len(), rows);
            assert!(found.as_flattened().iter().all(|value| *value > 0.0));
        }
    }

    #[test]
    fn what_was_published_is_shown_only_where_it_is_asked_for() {
        let measured = |case: &str, variant: &str| Measured {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric: "throughput",
            unit: "MiB/s",
            spread: Series::from(vec![1.0]).spread().unwrap(),
            working_set_bytes: 1,
            pinned: None,
        };
        let claim = |basis| Claim {
            basis,
            case: "read".to_owned(),
            claim: "fast".to_owned(),
            measured: "1".to_owned(),
            standing: Standing::Held,
            why: String::new(),
        };
        let matrix = |of: &[&str]| {
            let columns = of.iter().map(|of| Column::median(of, of, "throughput"));
            Matrix::of("", columns)
        };
        let whole = Block {
            notes: vec![
                "published: fast".to_owned(),
                "sizes are the published ones".to_owned(),
            ],
            results: vec![
                measured("read/T=1", "uzram"),
                measured("read/published-T=1", "4 streams"),
                measured("published/read", "cas"),
                measured("read/T=1", "published-cas"),
            ],
            claims: vec![claim(Basis::Aim), claim(Basis::Published)],
            matrices: vec![
                matrix(&["uzram", "published-cas"]),
                matrix(&["read/published-T=1"]),
            ],
            ..Block::default()
        };
        let count = |aims, published| {
            let mut blocks = [whole.clone()];
            keep_asked(aims, published, &mut blocks);
            let [block] = blocks;
            let columns = block.matrices.iter().map(|matrix| matrix.columns.len());
            let columns: Vec<usize> = columns.collect();
            (
                block.notes.len(),
                block.results.len(),
                block.claims.len(),
                columns,
            )
        };
        assert_eq!(count(false, false), (1, 1, 0, vec![1]));
        assert_eq!(count(true, false), (1, 1, 1, vec![1]));
        assert_eq!(count(true, true), (2, 4, 2, vec![2, 1]));
    }
}
