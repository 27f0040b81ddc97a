//! `uzram view`: what scripts for the kernel's zram do, in their own names. The scripts are forms of what LTP's
//! zram01 to zram03 and the kernel's selftests do, and of zramctl's uses.

use std::process::Command;

use crate::support::Ran;
use crate::tree::Tree;

/// The machine has one table of swap, by names: another view's swap may be of the same name for a while.
const MAKE_SWAP: &str = r#"
    make_swap() {
        tries=300
        until mkswap "$1" >/dev/null; do
            test $((tries -= 1)) -gt 0
            sleep 0.1
        done
    }
"#;

/// Runs a script in a view.
fn view(tree: &Tree, kind: &str, script: &str) -> Ran {
    let directory = tree.directory.to_str().unwrap();
    let script = [MAKE_SWAP, script].concat();
    let words = ["sh", "-euc", &script];
    let args = [&["view", kind, "--tree", directory, "--"][..], &words].concat();
    tree.home.run(&args)
}

fn passes(tree: &Tree, kind: &str, script: &str) -> String {
    let ran = view(tree, kind, script);
    assert_eq!(ran.status, 0, "{ran:?}");
    ran.stdout
}

fn tree() -> Option<Tree> {
    Tree::new(&["--attach", "loop"])
}

fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn a_script_for_the_kernels_module_runs_unchanged() {
    let Some(tree) = tree() else {
        return;
    };
    let script = r#"
        modprobe zram num_devices=3
        test "$(ls /dev/zram* | wc -w)" = 3
        test "$(ls -d /sys/block/zram* | wc -w)" = 3
        for alg in $(tr -d '[]' </sys/block/zram1/comp_algorithm); do
            echo "$alg" >/sys/block/zram1/comp_algorithm
            grep -q "\[$alg\]" /sys/block/zram1/comp_algorithm
        done
        echo lzo >/sys/block/zram0/comp_algorithm
        echo 26214400 >/sys/block/zram0/disksize
        echo 25M >/sys/block/zram0/mem_limit
        test "$(cat /sys/block/zram0/disksize)" = 26214400
        test -b /dev/zram0
        mkfs.ext4 -qF /dev/zram0
        mkdir -p mnt
        mount -t ext4 /dev/zram0 mnt
        test "$(awk '$1 == "/dev/zram0" { print $3 }' /proc/mounts)" = ext4
        size=0
        while dd conv=notrunc if=/dev/zero oflag=append count=64 bs=64k of=mnt/file 2>/dev/null; do
            size=$((size + 4096))
            test $size -lt 100000
        done
        sync
        used=$(awk '{ print $3 }' /sys/block/zram0/mm_stat)
        test $((100 * 1024 * size / used)) -ge 100
        umount mnt
        rmdir mnt
        modprobe -r zram
        test ! -e /dev/zram0
        test -z "$(ls -d /sys/block/zram* 2>/dev/null)"
    "#;
    let script = format!("cd {}\n{script}", tree.home.dir.path().display());
    passes(&tree, "generator", &script);
    assert!(!tree.path("uzram0").exists(), "rmmod took them away");
}

#[test]
fn swap_of_a_hundred_gigabytes_and_a_disk_that_is_hot_added() {
    let Some(tree) = tree() else {
        return;
    };
    passes(
        &tree,
        "generator",
        r#"
        number=$(cat /sys/class/zram-control/hot_add)
        zram=/sys/block/zram$number
        echo 100G >$zram/disksize
        echo 1M >$zram/mem_limit
        make_swap /dev/zram$number
        test "$(cat $zram/initstate)" = 1
        echo 1 >$zram/reset
        test "$(cat $zram/initstate $zram/disksize | tr '\n' ' ')" = "0 0 "
        echo $number >/sys/class/zram-control/hot_remove
        test ! -e $zram
        cat /sys/class/zram-control/hot_add >/dev/null
        echo 512M >$zram/disksize
        head -c 4194304 /dev/zero | tr '\0' a >/dev/zram$number
        head -c 4194304 /dev/zram$number | tr -d a | wc -c | grep -qx 0
        cat $zram/mm_stat $zram/stat >/dev/null
        echo 1 >$zram/reset
        echo $number >/sys/class/zram-control/hot_remove
    "#,
    );
}

/// In each view, since each has nodes of its own.
#[test]
fn every_file_system_and_swap_go_by_the_kernels_names() {
    let Some(tree) = tree() else {
        return;
    };
    let mnt = tempfile::tempdir().unwrap();
    let script = r#"
        for fs in ext2 ext3 ext4 xfs btrfs swap; do
            make=mkfs.$fs
            [ $fs = swap ] && make=mkswap
            command -v $make >/dev/null || { echo "left out: $make is not installed"; continue; }
            number=$(cat /sys/class/zram-control/hot_add)
            zram=/sys/block/zram$number
            node=/dev/zram$number
            echo lz4 >$zram/comp_algorithm
            echo 320M >$zram/disksize
            case $fs in
                swap)
                    make_swap $node
                    swapon $node
                    grep -q "^$node " /proc/swaps
                    echo 1 2>/dev/null >$zram/reset && exit 9
                    swapoff $node
                    grep -q "^$node " /proc/swaps && exit 8
                    ;;
                *)
                    $make -q $node >/dev/null
                    if grep -qw $fs /proc/filesystems; then
                        mount -t $fs $node MNT
                        seq 200000 >MNT/numbers
                        umount MNT
                        mount -t $fs $node MNT
                        seq 200000 | cmp - MNT/numbers
                        umount MNT
                    fi
                    ;;
            esac
            test $(awk '{ print $1 }' $zram/mm_stat) -gt 0
            tries=100
            until echo 1 2>/dev/null >$zram/reset; do
                test $((tries -= 1)) -gt 0
                sleep 0.1
            done
            echo $number >/sys/class/zram-control/hot_remove
            test ! -e $node
            echo "$fs done"
        done
    "#;
    let script = script.replace("MNT", mnt.path().to_str().unwrap());
    for kind in ["generator", "zramctl"] {
        let said = passes(&tree, kind, &script);
        assert_eq!(said.lines().count(), 6, "{kind}: {said}");
        let left_out = said.lines().filter(|line| line.starts_with("left out"));
        left_out.for_each(|line| eprintln!("{line}"));
    }
}

/// By the program that systemd's service runs, with the configuration of a view. It does nothing in a container
/// (as `systemd-detect-virt` has it), where uzram is at home, so the answer is its machine's.
#[test]
fn systemds_zram_generator_makes_swap_and_a_file_system() {
    const GENERATOR: &str = "/usr/lib/systemd/system-generators/zram-generator";
    for program in [GENERATOR, "/usr/lib/systemd/systemd-makefs"] {
        if !std::path::Path::new(program).exists() {
            return eprintln!("left out: {program} is not installed");
        }
    }
    let Some(tree) = tree() else {
        return;
    };
    let work = tempfile::tempdir().unwrap();
    let script = r#"
        cd WORK
        mkdir bin units early late etc
        printf '#!/bin/sh\nexit 1\n' >bin/systemd-detect-virt
        # No module of the kernel is wanted for a codec.
        printf '#!/bin/sh\nexit 0\n' >bin/modprobe
        chmod +x bin/*
        PATH=${PATH%%:*}:WORK/bin:$PATH
        printf '%s\n' '[zram0]' 'zram-size = 64' 'compression-algorithm = zstd' \
            '[zram1]' 'zram-size = 32' 'fs-type = ext2' 'mount-point = /uzramtest' >etc/zram-generator.conf
        mount --bind etc /etc/systemd
        GENERATOR units early late
        find units -type f | sort
        for disk in zram0 zram1; do GENERATOR --setup-device $disk 2>/dev/null; done
        grep -o '\[.*\]' /sys/block/zram0/comp_algorithm
        cat /sys/block/zram0/disksize /sys/block/zram1/disksize
        swapon /dev/zram0
        grep -o '^/dev/zram0 .*partition' /proc/swaps | tr -s ' '
        swapoff /dev/zram0
        mkdir mnt
        mount -t ext2 /dev/zram1 mnt
        umount mnt
        for disk in zram0 zram1; do GENERATOR --reset-device $disk; done
        cat /sys/block/zram0/initstate /sys/block/zram1/initstate
    "#;
    let script = script
        .replace("WORK", work.path().to_str().unwrap())
        .replace("GENERATOR", GENERATOR);
    let said = passes(&tree, "generator", &script);
    assert_eq!(
        said,
        "units/dev-zram0.swap\n\
        units/systemd-zram-setup@zram0.service.d/bindings.conf\n\
        units/systemd-zram-setup@zram1.service.d/bindings.conf\n\
        units/uzramtest.mount\n\
        [zstd]\n67108864\n33554432\n/dev/zram0 partition\n0\n0\n"
    );
}

#[test]
fn zramctl_finds_lists_and_resets() {
    if !has("zramctl") {
        return eprintln!("left out: zramctl is not installed");
    }
    let Some(tree) = tree() else {
        return;
    };
    let listed = passes(
        &tree,
        "zramctl",
        r#"
        test "$(zramctl --find --size 64M --algorithm lz4)" = /dev/zram0
        test "$(zramctl --find --size 32M)" = /dev/zram1
        make_swap /dev/zram0
        zramctl --noheadings --raw --bytes --output NAME,ALGORITHM,DISKSIZE | sort
        zramctl --reset /dev/zram0
        test "$(zramctl --noheadings --output NAME)" = /dev/zram1
        test "$(zramctl --find --size 16M)" = /dev/zram0
    "#,
    );
    assert_eq!(
        listed,
        "/dev/zram0 lz4 67108864\n/dev/zram1 auto 33554432\n"
    );
    let stat = tree.home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(stat["disksize"], 16 << 20);
}

#[test]
fn a_view_ends_with_its_program_and_takes_its_status() {
    let Some(tree) = tree() else {
        return;
    };
    assert_eq!(view(&tree, "generator", "exit 7").status, 7);
    assert_eq!(view(&tree, "generator", "kill -9 $$").status, 137);
    let files = tree.home.files();
    assert!(
        !files.iter().any(|name| name.starts_with("view")),
        "{files:?}"
    );
    tree.home
        .run(&["view", "generator", "--tree", "/nowhere", "--", "true"])
        .refused(1, "no tree is mounted there");
    // The machine's own devices are there, and the kernel's zram is not.
    passes(
        &tree,
        "zramctl",
        "test -c /dev/null; test -d /dev/pts; test -e /dev/loop-control; test ! -e /dev/zram0",
    );
}
