//! The options of a disk as flags, made of the server's table of options.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};

use uzram_server::options::{OptionSpec, TABLE, ValueForm, find};

/// All options, for commands that make a disk.
#[derive(Clone, Debug)]
pub struct DeviceArgs(pub Given);

/// Those of `uzram up`, which decides the others by itself.
#[derive(Clone, Debug)]
pub struct UpDeviceArgs(pub Given);

/// The options that were given, in the table's order, with their values as they were typed. That of a
/// flag is `yes`.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(&'static OptionSpec, OsString)>);

impl Given {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionSpec, &OsStr)> {
        self.0
            .iter()
            .map(|(spec, value)| (*spec, value.as_os_str()))
    }

    /// The value of an option that is no path.
    pub fn text(&self, name: &str) -> Option<&str> {
        let mut given = self.iter();
        given.find(|(spec, _)| spec.name == name)?.1.to_str()
    }

    /// The others.
    pub fn without(mut self, name: &str) -> Given {
        self.0.retain(|(spec, _)| spec.name != name);
        self
    }

    /// Options of the table with their values.
    pub fn of_values(values: Vec<(&'static str, String)>) -> Given {
        let mut given = Given::default();
        given.extend(values);
        given
    }

    /// Adds options of the table with their values.
    pub fn extend(&mut self, values: impl IntoIterator<Item = (&'static str, String)>) {
        let values = values.into_iter();
        let known = values.filter_map(|(name, value)| Some((find(name)?, value.into())));
        self.0.extend(known);
    }

    fn of(flags: impl Iterator<Item = Flag>, matches: &ArgMatches) -> Given {
        let given = flags.filter_map(|flag| Some((flag.spec, flag.value(matches)?)));
        Given(given.collect())
    }
}

/// An option of the table as a command offers it.
struct Flag {
    spec: &'static OptionSpec,
    help: &'static str,
    default: &'static str,
}

/// The help and the default at `uzram up`, where they differ.
type OfUp = Option<(&'static str, &'static str)>;

const UP: [(&str, OfUp); 7] = [
    (
        "size",
        Some(("Size of the disk (64M, 1.5G, 50%)", "half of RAM")),
    ),
    (
        "name",
        Some((
            "Name of the disk",
            "swap0 for swap, else the first free uzram0, uzram1, …",
        )),
    ),
    ("algorithm", None),
    ("algorithm-params", None),
    ("pool", None),
    ("checksum", None),
    (
        "mem-limit",
        Some((
            "Most memory that compressed pages may take",
            "none; half of RAM for larger swap",
        )),
    ),
];

/// Letters of options, as zramctl has them.
const SHORT: [(&str, char); 3] = [("size", 's'), ("algorithm", 'a'), ("algorithm-params", 'p')];

impl Flag {
    fn all() -> impl Iterator<Item = Flag> {
        TABLE.iter().map(|spec| Flag {
            spec,
            help: spec.help,
            default: spec.default,
        })
    }

    fn of_up() -> impl Iterator<Item = Flag> {
        Flag::all().filter_map(|flag| {
            let (_, differs) = UP.iter().find(|(name, _)| *name == flag.spec.name)?;
            let (help, default) = differs.unwrap_or((flag.help, flag.default));
            Some(Flag {
                help,
                default,
                ..flag
            })
        })
    }

    fn argument(self) -> Arg {
        let help = match self.default {
            "" => self.help.to_owned(),
            default => format!("{} [default: {default}]", self.help),
        };
        let arg = Arg::new(self.spec.name)
            .long(self.spec.name)
            .help(help)
            .conflicts_with_all(self.spec.excludes);
        let short = SHORT.iter().find(|(name, _)| *name == self.spec.name);
        let arg = match short {
            Some((_, letter)) => arg.short(*letter),
            None => arg,
        };
        if self.spec.value == ValueForm::Flag {
            return arg.action(ArgAction::SetTrue);
        }
        let arg = arg.value_name(self.spec.value.placeholder());
        match self.spec.value {
            ValueForm::Path(_) => arg.value_parser(value_parser!(PathBuf)),
            ValueForm::Parameters(_) => arg.allow_hyphen_values(true),
            ValueForm::Word(_, words) => {
                let words = words.iter();
                let words = words.map(|(word, help)| PossibleValue::new(*word).help(*help));
                arg.value_parser(PossibleValuesParser::new(words))
            }
            ValueForm::Flag | ValueForm::Text(_) => arg,
        }
    }

    fn value(&self, matches: &ArgMatches) -> Option<OsString> {
        let name = self.spec.name;
        match self.spec.value {
            ValueForm::Flag => matches.get_flag(name).then(|| "yes".into()),
            ValueForm::Path(_) => {
                let path = matches.get_one::<PathBuf>(name)?;
                Some(path.clone().into_os_string())
            }
            ValueForm::Text(_) | ValueForm::Parameters(_) | ValueForm::Word(..) => {
                matches.get_one::<String>(name).map(OsString::from)
            }
        }
    }
}

impl Args for DeviceArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Flag::all().map(Flag::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        DeviceArgs::augment_args(command)
    }
}

impl FromArgMatches for DeviceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<DeviceArgs, Error> {
        Ok(DeviceArgs(Given::of(Flag::all(), matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = DeviceArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for UpDeviceArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Flag::of_up().map(Flag::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        UpDeviceArgs::augment_args(command)
    }
}

impl FromArgMatches for UpDeviceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<UpDeviceArgs, Error> {
        Ok(UpDeviceArgs(Given::of(Flag::of_up(), matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = UpDeviceArgs::from_arg_matches(matches)?;
        Ok(())
    }
}
