//! Commands that a holder answers itself.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Instant;

use uzram::REMAINS_FORMAT;

use super::{
    Holder, LEAVE_TIMEOUT, SERVE_TIMEOUT, Step, Upgrade, is_ready, refuse, remove_left, reply,
};
use crate::device;
use crate::survive::kept::Kept;
use crate::survive::message::{Death, Message, now_ns, send};
use crate::survive::program::Program;
use crate::survive::running::Running;

impl Holder {
    /// Answers the next command, if there is one.
    pub(super) fn answer_command(&mut self, server: Option<&Running>) {
        let Some(commands) = self
            .commands
            .as_ref()
            .filter(|commands| is_ready(&commands.listener))
        else {
            return;
        };
        let Some((asker, (message, files))) = commands.next() else {
            return;
        };
        match message {
            Message::Upgrade { format } => self.begin_upgrade(server, asker, format, files),
            Message::Export { name } => self.export(server, &asker, &name),
            Message::LetGo { name } => self.let_go(server, &asker, &name),
            other => refuse(&asker, format!("{other:?}: not a request")),
        }
    }

    fn begin_upgrade(
        &mut self,
        server: Option<&Running>,
        asker: OwnedFd,
        format: u32,
        files: Vec<OwnedFd>,
    ) {
        if format != REMAINS_FORMAT {
            let text = format!(
                "the new program opens format {format}, and the disks have format {REMAINS_FORMAT}: nothing was \
                 changed; copy the disks to a server of the new program"
            );
            return refuse(&asker, text);
        }
        if self.upgrade.is_some() {
            return refuse(&asker, "another upgrade is under way".into());
        }
        let Some(program) = files
            .into_iter()
            .next()
            .map(File::from)
            .map(Program::opened)
        else {
            return refuse(&asker, "no program".into());
        };
        if server.is_some_and(|running| !running.is_serving) {
            return refuse(&asker, "its server is still starting; try again".into());
        }
        // Before anything is stopped.
        match Running::start(&program, &self.arguments, self.stderr.as_ref()) {
            Ok(next) => self.replace_standby(Some(next)),
            Err(error) => return refuse(&asker, format!("{error}: nothing was changed")),
        }
        let mut upgrade = Upgrade {
            asker,
            other: program,
            step: Step::Leaving,
            until: Instant::now() + LEAVE_TIMEOUT,
        };
        match server {
            Some(running) => {
                self.before = Some(Death {
                    pid: running.pid(),
                    why: "handed over".into(),
                    at_ns: now_ns(),
                });
                if send(&running.socket, &Message::HandOver {}, &[]).is_err() {
                    upgrade.until = Instant::now();
                }
            }
            None => {
                std::mem::swap(&mut self.program, &mut upgrade.other);
                upgrade.step = Step::Trying;
                upgrade.until = Instant::now() + SERVE_TIMEOUT;
            }
        }
        self.upgrade = Some(upgrade);
    }

    /// Hands over what a device has, while nobody serves it.
    fn export(&self, server: Option<&Running>, asker: &OwnedFd, name: &str) {
        match self.left(server, name) {
            Ok(kept) => {
                let (message, files) = kept.message();
                let _ = send(asker, &message, &files);
            }
            Err(why) => refuse(asker, why),
        }
    }

    /// Drops what a device has, while nobody serves it.
    fn let_go(&mut self, server: Option<&Running>, asker: &OwnedFd, name: &str) {
        match self.left(server, name) {
            Ok(kept) => device::give_back_memory(kept),
            Err(why) => return refuse(asker, why),
        }
        self.kept.forget(&device::key(name));
        self.kept.forget(&device::claim_key(name));
        remove_left(&self.state, name);
        reply(
            asker,
            Message::Done {
                error: None,
                pause_ns: 0,
            },
        );
    }

    /// The things kept of a device that nobody serves.
    fn left(&self, server: Option<&Running>, name: &str) -> Result<&Kept, String> {
        match (server, self.kept.find(&device::key(name))) {
            (Some(_), _) => Err(format!("{name}: it is served; copy it from there")),
            (None, None) => Err(format!("{name}: not kept here")),
            (None, Some(kept)) => Ok(kept),
        }
    }
}
