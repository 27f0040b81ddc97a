//! The whole way except the kernel: a simulated driver, real queues, real devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uzram::{Bio, BlockDevice, ErrorKind, Geometry, PageIndex, PageTransfer, Store, Unit, Zram};
use uzram_testkit::Rng;

use super::lifecycle::{Served, Wish};
use super::protocol::State;
use super::protocol::{ANY_ID, Control, Descriptor, FEATURE_IOCTL_ENCODE, FEATURES_RECOVERY, Info};
use super::queue::Arrival;
use super::sim::{Rules, Sim};

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
const FORCED: u32 = 1 << 13;
const KEEP_BLOCKS: u32 = 1 << 15;

const SIZE: u64 = 1 << 20;
const WISH: Wish = Wish {
    queues: 2,
    depth: 4,
    label: 0x757a_0000_0000_0001,
    outlives: false,
};

fn store(unit: usize) -> Store {
    let builder = Store::builder().size(SIZE).algorithm("lz4");
    builder
        .unit(Unit::new(unit as u64).unwrap())
        .build()
        .unwrap()
}

fn zram() -> Arc<dyn BlockDevice> {
    Arc::new(Zram::new(store(4096)))
}

fn request(operation_and_flags: u32, first_sector: u64, sectors: u32) -> Descriptor {
    Descriptor {
        operation_and_flags,
        sectors,
        first_sector,
    }
}

fn serve(device: &Arc<dyn BlockDevice>) -> (Sim, Served<Sim>) {
    let sim = Sim::new(device, Rules::default());
    let served = Served::start(sim.clone(), device, WISH).unwrap();
    (sim, served)
}

#[test]
fn random_requests_are_what_a_model_says() {
    for unit in [4096, 16384] {
        let device: Arc<dyn BlockDevice> = Arc::new(Zram::new(store(unit)));
        let (sim, served) = serve(&device);
        let mut model = vec![0u8; SIZE as usize];
        let mut random = Rng::new(0x5eed_0b1c);
        for round in 0..3000 {
            let sectors = 1 + random.below_u64(64) as u32;
            let first = random.below_u64(SIZE / 512 - u64::from(sectors));
            let range = first as usize * 512..(first as usize + sectors as usize) * 512;
            let queue = random.below_u64(2) as u16;
            let moved = (range.len()) as i32;
            match random.below_u64(5) {
                0 | 1 => {
                    let (byte, step) = (
                        random.below_u64(256) as u8,
                        1 + random.below_u64(40) as usize,
                    );
                    let data: Vec<u8> = (0..range.len())
                        .map(|at| byte.wrapping_add((at / step) as u8))
                        .collect();
                    let flags = if byte < 30 { FORCED } else { 0 };
                    let said = sim.request(queue, request(WRITE | flags, first, sectors), &data);
                    assert_eq!(said.0, moved, "round {round}");
                    model[range].copy_from_slice(&data);
                }
                2 => {
                    let flags = if first.is_multiple_of(2) {
                        KEEP_BLOCKS
                    } else {
                        0
                    };
                    let zero = request(WRITE_ZEROES | flags, first, sectors);
                    assert_eq!(sim.request(queue, zero, &[]).0, 0);
                    model[range].fill(0);
                }
                3 => {
                    // Whole units become holes, others stay.
                    assert_eq!(
                        sim.request(queue, request(DISCARD, first, sectors), &[]).0,
                        0
                    );
                    let start = range.start.next_multiple_of(unit);
                    let end = range.end / unit * unit;
                    if start < end {
                        model[start..end].fill(0);
                    }
                }
                _ => {
                    let (said, buffer) = sim.request(queue, request(READ, first, sectors), &[]);
                    assert_eq!(said, moved, "round {round}");
                    assert!(buffer[..range.len()] == model[range], "round {round}");
                }
            }
        }
        assert_eq!(sim.request(0, request(FLUSH, 0, 0), &[]).0, 0);
        drop(served);
        assert_eq!((sim.devices_count(), sim.channels_count()), (0, 0));
    }
}

#[test]
fn many_requests_at_once_are_all_answered_with_their_data() {
    let device = zram();
    let (sim, served) = serve(&device);
    // Far more than there are tags: the rest waits.
    let page = |at: u64| vec![at as u8 | 1; 4096];
    let writes: Vec<_> = (0..200u64)
        .map(|at| sim.request_later(at as u16 % 2, request(WRITE, at * 8, 8), &page(at)))
        .collect();
    for (at, write) in writes.iter().enumerate() {
        assert_eq!(write.recv().unwrap().0, 4096, "write {at}");
    }
    for at in 0..200 {
        let (said, buffer) = sim.request(0, request(READ, at * 8, 8), &[]);
        assert!(said == 4096 && buffer[..4096] == page(at)[..], "read {at}");
    }
    drop(served);
}

#[test]
fn requests_that_lie_are_refused_and_change_nothing() {
    let device = zram();
    let (sim, served) = serve(&device);
    let full = 128 << 10;
    sim.request(0, request(WRITE, 0, 8), &[7; 4096]);
    let end = SIZE / 512;
    for (hostile, errno) in [
        (request(READ, 0, 0), Errno::INVAL),
        (request(WRITE, 0, 0), Errno::INVAL),
        (request(READ, 0, full / 512 + 1), Errno::INVAL),
        (request(WRITE, 0, full / 512 + 1), Errno::INVAL),
        (request(WRITE, 0, u32::MAX), Errno::INVAL),
        (request(READ, end, 8), Errno::INVAL),
        (request(WRITE, end - 4, 8), Errno::INVAL),
        (request(DISCARD, end - 4, u32::MAX), Errno::INVAL),
        (request(WRITE_ZEROES, u64::MAX, 8), Errno::INVAL),
        (request(DISCARD, 1 << 55, 8), Errno::INVAL),
        (request(READ, u64::MAX, u32::MAX), Errno::INVAL),
        (request(4, 0, 8), Errno::OPNOTSUPP),
        (request(15, 0, 8), Errno::OPNOTSUPP),
        (request(0xff, 0, 8), Errno::OPNOTSUPP),
    ] {
        let said = sim.request(0, hostile, &[]).0;
        assert_eq!(said, -errno.raw_os_error(), "{hostile:?}");
    }
    let mut random = Rng::new(0xdead_5eed);
    for _ in 0..5000 {
        let hostile = request(
            random.next() as u32 & !0xff | random.below_u64(20) as u32,
            random.next() >> random.below_u64(64),
            (random.next() >> random.below_u64(64)) as u32,
        );
        if hostile.operation_and_flags & 0xff == READ {
            sim.request(1, hostile, &[]);
        }
    }
    let (said, buffer) = sim.request(0, request(READ, 0, 8), &[]);
    assert!(said == 4096 && buffer[..4096] == [7; 4096]);
    drop(served);
}

#[test]
fn arrivals_that_lie_end_nothing_but_their_tags() {
    let device = zram();
    let (sim, served) = serve(&device);
    for tag in [4, 5, 65536, 65535, u64::MAX] {
        for result in [0, -19, 1] {
            sim.raw(0, Arrival { tag, result });
        }
    }
    // A question that was not to be asked, for a tag that is there.
    sim.raw(0, Arrival { tag: 3, result: 1 });
    // Handed back as often as there are tags, then used all the same.
    for result in [-19, -19, -19, -19, 0] {
        sim.raw(0, Arrival { tag: 2, result });
    }
    for at in 0..20 {
        assert_eq!(
            sim.request(0, request(WRITE, at * 8, 8), &[9; 4096]).0,
            4096
        );
    }
    drop(served);
    assert_eq!((sim.devices_count(), sim.channels_count()), (0, 0));
}

/// The behaviour of a device on each request, after it was counted.
struct Odd {
    counted: AtomicU64,
    act: fn(&Bio<'_>) -> uzram::Result<()>,
}

impl BlockDevice for Odd {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: SIZE,
            preferred_block_bytes: 4096,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
        self.counted.fetch_add(1, Ordering::Relaxed);
        (self.act)(&bio)
    }
}

fn odd(act: fn(&Bio<'_>) -> uzram::Result<()>) -> (Arc<Odd>, Arc<dyn BlockDevice>) {
    let counted = AtomicU64::new(0);
    let odd = Arc::new(Odd { counted, act });
    (Arc::clone(&odd), odd)
}

#[test]
fn a_device_that_fails_or_panics_fails_its_request_only() {
    let (odd, device) = odd(|bio| match bio {
        Bio::Read { offset: 0, .. } => panic!("told to"),
        Bio::Read { .. } => Err(uzram::Error::new(ErrorKind::NoSpace, "told to")),
        _ => Ok(()),
    });
    let (sim, served) = serve(&device);
    for _ in 0..10 {
        assert_eq!(sim.request(0, request(READ, 0, 8), &[]).0, -5);
        assert_eq!(sim.request(0, request(READ, 8, 8), &[]).0, -28);
        assert_eq!(sim.request(0, request(FLUSH, 0, 0), &[]).0, 0);
    }
    assert_eq!(odd.counted.load(Ordering::Relaxed), 30);
    drop(served);
}

#[test]
fn a_forced_write_flushes_before_it_is_acknowledged() {
    let (odd, device) = odd(|_| Ok(()));
    // The simulated driver reads back what was written, which this device does not keep.
    let buffer = &mut [0; 4096];
    let plain = super::execute::execute(device.as_ref(), &request(WRITE, 0, 8), buffer);
    assert_eq!((plain, odd.counted.load(Ordering::Relaxed)), (4096, 1));
    let forced = request(WRITE | FORCED, 0, 8);
    let forced = super::execute::execute(device.as_ref(), &forced, buffer);
    assert_eq!((forced, odd.counted.load(Ordering::Relaxed)), (4096, 3));
}

/// Flags of the calling thread: field 9 of its line, behind a name that may hold spaces.
fn thread_flags() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_whitespace().nth(6).unwrap().parse().unwrap()
}

#[test]
fn every_queue_is_an_io_flusher() {
    const NOT_BY_IO: u64 = 0x8_0000;
    let (_, device) = odd(|_| match thread_flags() & NOT_BY_IO {
        0 => Err(uzram::Error::new(ErrorKind::Unsupported, "not marked")),
        _ => Ok(()),
    });
    let (sim, served) = serve(&device);
    if !served.is_io_flusher() {
        return eprintln!("left out: marking a thread needs CAP_SYS_RESOURCE");
    }
    for queue in [0, 1] {
        assert_eq!(sim.request(queue, request(FLUSH, 0, 0), &[]).0, 0);
    }
}

/// The error of a start that must fail. Nothing of it may be left.
fn refused(wish: Wish, rules: Rules) -> (ErrorKind, String, Sim) {
    let device = zram();
    let sim = Sim::new(&device, rules);
    let error = Served::start(sim.clone(), &device, wish).err().unwrap();
    assert_eq!(
        (sim.devices_count(), sim.channels_count()),
        (0, 0),
        "{error}"
    );
    (error.kind(), error.to_string(), sim)
}

fn refusing(command: Control, errno: Errno) -> Rules {
    Rules {
        refused: [(command.code() as u8, errno)].into(),
        ..Rules::default()
    }
}

#[test]
fn a_start_that_fails_leaves_no_device_and_no_queue() {
    for command in [Control::SetParameters, Control::Start] {
        let (kind, text, _) = refused(WISH, refusing(command, Errno::INVAL));
        assert!(
            kind == ErrorKind::Io && text.starts_with("ublk: the disk"),
            "{text}"
        );
    }
    let rules = Rules {
        node: Some(Errno::ACCESS),
        ..Rules::default()
    };
    let (_, text, _) = refused(WISH, rules);
    assert!(
        text.starts_with("ublk: /dev/ublkc3: cannot be opened; mount devtmpfs"),
        "{text}"
    );
    let rules = Rules {
        fetch: -Errno::BUSY.raw_os_error(),
        ..Rules::default()
    };
    let (_, text, _) = refused(WISH, rules);
    assert!(text.starts_with("ublk: a queue cannot be opened"), "{text}");
}

#[test]
fn a_queue_count_or_depth_out_of_range_is_refused_before_anything_is_asked() {
    for (queues, depth, said) in [
        (0, 1, "ublk: 0 queues: must be 1 to 64"),
        (65, 1, "ublk: 65 queues: must be 1 to 64"),
        (1, 0, "ublk: a queue's depth of 0: must be 1 to 4096"),
        (1, 4097, "ublk: a queue's depth of 4097: must be 1 to 4096"),
    ] {
        let wish = Wish {
            queues,
            depth,
            ..WISH
        };
        let (kind, text, sim) = refused(wish, Rules::default());
        assert_eq!((kind, text.as_str()), (ErrorKind::InvalidInput, said));
        assert_eq!(sim.asked(), []);
    }
}

#[test]
fn a_driver_that_offers_less_is_taken_and_one_that_offers_more_is_not() {
    let device = zram();
    let rules = Rules {
        offer: |info| Info {
            queues: 1,
            depth: 2,
            request_bytes: 8192,
            ..info
        },
        ..Rules::default()
    };
    let sim = Sim::new(&device, rules);
    let served = Served::start(sim.clone(), &device, WISH).unwrap();
    assert_eq!(sim.channels_count(), 1);
    assert_eq!(sim.request(0, request(WRITE, 0, 16), &[1; 8192]).0, 8192);
    assert_eq!(sim.request(0, request(READ, 0, 17), &[]).0, -22);
    drop(served);

    let lies: [fn(Info) -> Info; 6] = [
        |info| Info { queues: 0, ..info },
        |info| Info { queues: 3, ..info },
        |info| Info { depth: 0, ..info },
        |info| Info { depth: 5, ..info },
        |info| Info {
            request_bytes: 512,
            ..info
        },
        |info| Info {
            request_bytes: 32 << 20,
            ..info
        },
    ];
    for offer in lies {
        let rules = Rules {
            offer,
            ..Rules::default()
        };
        let (kind, text, _) = refused(WISH, rules);
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(text.starts_with("ublk: the kernel offers"), "{text}");
    }
}

#[test]
fn an_old_driver_is_named_and_not_used() {
    for rules in [
        refusing(Control::Features, Errno::OPNOTSUPP),
        Rules {
            features: 0,
            ..Rules::default()
        },
    ] {
        let (kind, text, sim) = refused(WISH, rules);
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(
            text.contains("Linux 6.5") && text.contains("attach as loop"),
            "{text}"
        );
        assert_eq!(sim.asked().len(), 1);
    }
    let (_, text, _) = refused(WISH, refusing(Control::Features, Errno::PERM));
    assert!(text.contains("be root"), "{text}");
}

#[test]
fn a_driver_that_adds_nothing_says_why() {
    for (errno, said) in [
        (Errno::EXIST, "the number is taken"),
        (Errno::NOSPC, "all numbers are taken"),
        (Errno::PERM, "be root"),
        (Errno::NOMEM, "no device can be added"),
    ] {
        let (_, text, _) = refused(WISH, refusing(Control::Add, errno));
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_user_without_privileges_is_judged_by_the_path() {
    let device = zram();
    let rules = |features| Rules {
        features,
        is_privileged: false,
        ..Rules::default()
    };
    let sim = Sim::new(&device, rules(FEATURE_IOCTL_ENCODE | 1 << 5));
    drop(Served::start(sim.clone(), &device, WISH).unwrap());
    let asked = sim.asked();
    assert!(
        asked
            .iter()
            .all(|asked| asked.by_path == (asked.id != ANY_ID)),
        "{asked:?}"
    );
    assert_eq!(sim.devices_count(), 0);
    let (_, text, _) = refused(WISH, rules(FEATURE_IOCTL_ENCODE));
    assert!(text.contains("be root"), "{text}");
}

/// Checks for ways in which users could see another store than theirs: the number of an earlier
/// device, or a device that waits for another server.
#[test]
fn a_device_is_new_and_nobody_can_take_it_over() {
    let device = zram();
    let (sim, served) = serve(&device);
    let [wish] = sim.added()[..] else {
        panic!("{:?}", sim.added());
    };
    assert_eq!((wish.id, wish.features), (ANY_ID, FEATURE_IOCTL_ENCODE));
    assert_eq!(wish.label, WISH.label);
    drop(served);
}

const OUTLIVES: Wish = Wish {
    outlives: true,
    ..WISH
};

/// A disk whose server is dead.
fn orphan(device: &Arc<dyn BlockDevice>) -> (Sim, u32) {
    let rules = Rules {
        features: FEATURE_IOCTL_ENCODE | FEATURES_RECOVERY,
        ..Rules::default()
    };
    let sim = Sim::new(device, rules);
    let served = Served::start(sim.clone(), device, OUTLIVES).unwrap();
    let id = served.id();
    assert_eq!(sim.request(0, request(WRITE, 0, 8), &[7; 4096]).0, 4096);
    sim.kill(id);
    std::mem::forget(served);
    (sim, id)
}

#[test]
fn a_disk_of_a_dead_server_goes_on_with_its_queues_and_content() {
    let device = zram();
    let (sim, id) = orphan(&device);
    let served = Served::resume(sim.clone(), &device, id, WISH.label).unwrap();
    assert_eq!((served.id(), sim.channels_count()), (id, 2));
    assert_eq!(sim.state(id), State::Live);
    for queue in [0, 1] {
        let (said, buffer) = sim.request(queue, request(READ, 0, 8), &[]);
        assert!(said == 4096 && buffer[..4096] == [7; 4096]);
    }
    // The successor dies too.
    sim.kill(id);
    std::mem::forget(served);
    let served = Served::resume(sim.clone(), &device, id, WISH.label).unwrap();
    assert_eq!(sim.request(1, request(READ, 0, 8), &[]).0, 4096);
    drop(served);
    assert_eq!((sim.devices_count(), sim.channels_count()), (0, 0));
}

#[test]
fn a_disk_of_another_label_is_not_taken_over_and_stays() {
    let device = zram();
    let (sim, id) = orphan(&device);
    let taken = Served::resume(sim.clone(), &device, id, WISH.label + 1);
    let error = taken.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(sim.devices_count(), 1);
    assert!(
        !sim.asked()
            .iter()
            .any(|asked| asked.command == Control::StartRecovery)
    );
    drop(Served::resume(sim.clone(), &device, id, WISH.label).unwrap());
    assert_eq!(sim.devices_count(), 0);
}

#[test]
fn a_disk_that_is_served_or_dies_with_its_server_is_not_taken_over() {
    let device = zram();
    let (sim, served) = serve(&device);
    let taken = Served::resume(sim.clone(), &device, served.id(), WISH.label);
    let text = taken.err().unwrap().to_string();
    assert!(text.contains("not made to outlive its server"), "{text}");
    let (sim, id) = orphan(&device);
    let successor = Served::resume(sim.clone(), &device, id, WISH.label).unwrap();
    let taken = Served::resume(sim.clone(), &device, id, WISH.label);
    assert_eq!(taken.err().unwrap().kind(), ErrorKind::Busy);
    assert_eq!(sim.request(0, request(READ, 0, 8), &[]).0, 4096);
    drop(successor);
}

#[test]
fn a_driver_without_recovery_is_named_before_a_device_is_added() {
    let (kind, text, sim) = refused(OUTLIVES, Rules::default());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("keeps no disk for another server"), "{text}");
    assert_eq!(sim.added(), []);
}

#[test]
fn a_device_is_deleted_in_the_old_way_where_there_is_no_other() {
    let device = zram();
    for errno in [Errno::OPNOTSUPP, Errno::INVAL] {
        let sim = Sim::new(&device, refusing(Control::DeleteLater, errno));
        let mut served = Served::start(sim.clone(), &device, WISH).unwrap();
        served.remove().unwrap();
        served.remove().unwrap();
        assert_eq!(sim.devices_count(), 0);
        let deletes = sim.asked().into_iter();
        assert_eq!(
            deletes
                .filter(|asked| asked.command == Control::Delete)
                .count(),
            1
        );
    }
    let sim = Sim::new(&device, refusing(Control::Stop, Errno::BUSY));
    let mut served = Served::start(sim.clone(), &device, WISH).unwrap();
    let error = served.remove().unwrap_err();
    assert!(error.to_string().contains("cannot be stopped"), "{error}");
    assert_eq!(sim.devices_count(), 1);
    std::mem::forget(served);
}

#[test]
fn stopping_waits_for_requests_under_way() {
    let (odd, device) = odd(|_| {
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    });
    let (sim, mut served) = serve(&device);
    let answered = sim.request_later(0, request(FLUSH, 0, 0), &[]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while odd.counted.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    served.remove().unwrap();
    assert_eq!(answered.try_recv().unwrap().0, 0);
    assert_eq!(sim.channels_count(), 0);
}

#[test]
fn the_disk_is_cut_to_what_its_device_is_atomic_in() {
    struct Shape(Geometry);
    impl BlockDevice for Shape {
        fn geometry(&self) -> Geometry {
            self.0
        }
        fn submit(&self, _bio: Bio<'_>) -> uzram::Result<()> {
            Ok(())
        }
    }
    let parameters = |size_bytes, preferred_block_bytes| {
        let shape = Shape(Geometry {
            size_bytes,
            preferred_block_bytes,
        });
        super::lifecycle::parameters(&shape, 128 << 10)
    };
    let blocks = |size, preferred| {
        let parameters = parameters(size, preferred).unwrap();
        (
            parameters.logical_block_bytes,
            parameters.preferred_block_bytes,
        )
    };
    assert_eq!(blocks(1 << 20, 4096), (4096, 4096));
    assert_eq!(blocks(1 << 20, 65536), (4096, 65536));
    assert_eq!(blocks((1 << 20) + 512, 4096), (512, 4096));
    assert_eq!(blocks(1 << 20, 512), (512, 512));
    assert_eq!(blocks(1 << 20, 1 << 20), (4096, 128 << 10));
    let error = parameters(1000, 512).unwrap_err();
    assert!(error.to_string().contains("multiple of 512"), "{error}");
}

/// On this machine's kernel: an answer, and one that helps.
#[test]
fn this_machine_says_whether_it_has_the_driver() {
    match super::check() {
        Ok(()) => {}
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.starts_with("ublk: ") && text.contains("or attach as loop"),
                "{text}"
            );
        }
    }
    assert_eq!(super::devices(0x1234), []);
}

#[test]
fn pages_go_the_shortest_way() {
    struct Pages;
    impl BlockDevice for Pages {
        fn geometry(&self) -> Geometry {
            Geometry {
                size_bytes: SIZE,
                preferred_block_bytes: 4096,
            }
        }
        fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
            panic!("{bio:?}")
        }
        fn rw_page(&self, page: PageIndex, _transfer: PageTransfer<'_>) -> uzram::Result<()> {
            assert_eq!(page, PageIndex(3));
            Ok(())
        }
    }
    let mut buffer = vec![0; 8192];
    for operation in [READ, WRITE] {
        let said = super::execute::execute(&Pages, &request(operation, 24, 8), &mut buffer);
        assert_eq!(said, 4096);
        let unaligned = super::execute::execute(&Pages, &request(operation, 25, 8), &mut buffer);
        assert_eq!(unaligned, -5);
    }
}
