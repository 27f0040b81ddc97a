//! The commands to type once a disk is a file or a block device of this machine, or a disk of its
//! guests.

use std::path::Path;

use super::quoted;

/// A command to type, and its purpose.
type Line = (String, &'static str);

/// For a disk at `path`.
pub fn lines(path: &Path, name: &str) -> Vec<Line> {
    let shown = quoted(&path.to_string_lossy());
    match path.starts_with("/dev") {
        true => block_device(&shown, name),
        false => file(&shown),
    }
}

/// For a disk that virtual machines take from `socket`. Their memory must be shared.
pub fn guest_lines(socket: &Path) -> Vec<Line> {
    let shown = quoted(&socket.to_string_lossy());
    vec![
        (
            "-object memory-backend-memfd,id=m,size=2G,share=on -machine memory-backend=m".into(),
            "QEMU: a guest of 2 GiB, -m 2G",
        ),
        (
            format!("-chardev socket,id=d,path={shown},reconnect=1"),
            "and the socket",
        ),
        (
            "-device vhost-user-blk-pci,chardev=d,num-queues=2".into(),
            "and the disk",
        ),
        (
            format!("--memory size=2G,shared=on --disk vhost_user=on,socket={shown}"),
            "cloud-hypervisor",
        ),
    ]
}

fn block_device(path: &str, name: &str) -> Vec<Line> {
    vec![
        (
            format!("mkfs.ext4 -E nodiscard {path} && mount -o discard {path} /mnt"),
            "a file system; deleting gives memory back",
        ),
        (
            format!("mkswap {path} && swapon -p 100 -d {path}"),
            "swap: uzram up --swap does it safely",
        ),
        (format!("blkdiscard {path}"), "empty it"),
        (
            format!("umount {path}; uzram remove {name}"),
            "before you end it",
        ),
    ]
}

fn file(path: &str) -> Vec<Line> {
    vec![
        (format!("dd if=disk.img of={path} bs=1M"), "an image in"),
        (format!("mkfs.ext4 -F {path}"), "a file system in it"),
        (
            format!("losetup --direct-io=on -b 4096 -f --show {path}"),
            "a block device: --attach auto does it for you",
        ),
        (
            format!("qemu-system-x86_64 -drive file={path},format=raw,cache=none,discard=unmap"),
            "a disk of a guest",
        ),
        (
            format!("fallocate -p -o 0 -l 1G {path}"),
            "give the memory of a range back",
        ),
    ]
}
