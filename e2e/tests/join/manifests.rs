//! The units in `manifests/`: that service managers can read them, and that what they start takes its flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use panda_e2e::cluster::target;

fn units(folder: &str, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../manifests")
        .join(folder);
    let mut units = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            units.push(path);
        }
    }
    units.sort();
    ensure!(units.len() == 3, "{units:?}");
    Ok(units)
}

/// That a command line names one of our programs by its full path, and no flag that it does not have.
fn check_command(argv: &[&str]) -> anyhow::Result<()> {
    let (program, arguments) = argv.split_first().context("a program")?;
    let name = program.strip_prefix("/usr/local/bin/").context("a full path")?;
    let output = Command::new(target()?.join(name)).arg("--help").output()?;
    ensure!(output.status.success(), "{name} --help");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for flag in arguments.iter().filter(|word| word.starts_with("--")) {
        ensure!(help.contains(&format!("{flag} <")), "{name} has no {flag}");
    }
    Ok(())
}

#[test]
fn systemd_reads_its_units_without_a_complaint() -> anyhow::Result<()> {
    let copies = tempfile::tempdir()?;
    let mut names = Vec::new();
    for unit in units("systemd", "service")? {
        let text = std::fs::read_to_string(&unit)?;
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
        let start = start.context("ExecStart")?;
        check_command(&start.split_whitespace().collect::<Vec<_>>())?;
        // Programs are looked at, too; here they stand somewhere else.
        let here = format!("{}/", target()?.display());
        let copy = copies.path().join(unit.file_name().context("a name")?);
        std::fs::write(&copy, text.replace("/usr/local/bin/", &here))?;
        names.push(copy);
        if unit.ends_with("agentlet.service") {
            for rule in ["KillMode=process", "Delegate=yes", "Restart=always"] {
                ensure!(text.lines().any(|line| line == rule), "{rule}");
            }
        }
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&names)
        .output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: systemd-analyze is not installed");
            return Ok(());
        }
        output => output?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // Complaints about units of the machine itself are none of ours.
    let ours = said
        .lines()
        .find(|line| line.contains(&copies.path().display().to_string()));
    ensure!(output.status.success() && ours.is_none(), "{said}");
    Ok(())
}

/// A value of a property list, as far as our units need them.
#[derive(Debug, PartialEq)]
enum Value {
    Text(String),
    Number(i64),
    Bool(bool),
    List(Vec<Self>),
    Dict(BTreeMap<String, Self>),
}

/// A strict reader of property lists: every element is known, closed, and where it may be.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    /// The next element's tag: what stands between `<` and `>`.
    fn tag(&mut self) -> anyhow::Result<&'a str> {
        let rest = self.0.trim_start().strip_prefix('<').context("an element")?;
        let (tag, rest) = rest.split_once('>').context("an end of the tag")?;
        self.0 = rest;
        Ok(tag)
    }

    /// The text of a leaf, and its closing tag.
    fn text(&mut self, name: &str) -> anyhow::Result<String> {
        let (text, rest) = self
            .0
            .split_once(&format!("</{name}>"))
            .context("a closing tag")?;
        ensure!(
            !text.contains(['<', '&']),
            "{text:?} needs no more than plain text"
        );
        self.0 = rest;
        Ok(text.to_owned())
    }

    fn value(&mut self, tag: &str) -> anyhow::Result<Value> {
        Ok(match tag {
            "string" => Value::Text(self.text(tag)?),
            "integer" => Value::Number(self.text(tag)?.parse()?),
            "true/" => Value::Bool(true),
            "false/" => Value::Bool(false),
            "array" => {
                let mut items = Vec::new();
                loop {
                    match self.tag()? {
                        "/array" => break Value::List(items),
                        tag => items.push(self.value(tag)?),
                    }
                }
            }
            "dict" => {
                let mut fields = BTreeMap::new();
                loop {
                    match self.tag()? {
                        "/dict" => break Value::Dict(fields),
                        "key" => {
                            let key = self.text("key")?;
                            let tag = self.tag()?;
                            let value = self.value(tag)?;
                            ensure!(fields.insert(key.clone(), value).is_none(), "{key} twice");
                        }
                        tag => bail!("<{tag}> where a key belongs"),
                    }
                }
            }
            _ => bail!("unknown element <{tag}>"),
        })
    }

    fn document(text: &'a str) -> anyhow::Result<Value> {
        let mut reader = Self(text);
        ensure!(
            reader.tag()? == r#"?xml version="1.0" encoding="UTF-8"?"#,
            "a declaration"
        );
        ensure!(reader.tag()?.starts_with("!DOCTYPE plist "), "a document type");
        ensure!(reader.tag()? == r#"plist version="1.0""#, "a property list");
        let tag = reader.tag()?;
        let value = reader.value(tag)?;
        ensure!(reader.tag()? == "/plist" && reader.0.trim().is_empty(), "an end");
        Ok(value)
    }
}

#[test]
fn launchd_units_are_property_lists_that_start_our_programs() -> anyhow::Result<()> {
    for unit in units("launchd", "plist")? {
        let text = std::fs::read_to_string(&unit)?;
        let Value::Dict(fields) = Reader::document(&text).with_context(|| unit.display().to_string())? else {
            bail!("{}: no dictionary", unit.display());
        };
        let stem = unit.file_stem().context("a name")?.display().to_string();
        ensure!(
            fields.get("Label") == Some(&Value::Text(stem)),
            "launchd wants the file's name as the label"
        );
        let Some(Value::List(words)) = fields.get("ProgramArguments") else {
            bail!("{}: ProgramArguments", unit.display());
        };
        let words: Vec<&str> = words
            .iter()
            .map(|word| match word {
                Value::Text(word) => Ok(word.as_str()),
                other => bail!("{other:?} is no text"),
            })
            .collect::<anyhow::Result<_>>()?;
        check_command(&words)?;
        ensure!(
            fields.get("RunAtLoad") == Some(&Value::Bool(true)),
            "{}",
            unit.display()
        );
        if words[0].ends_with("/agentlet") {
            // Runs outlive the daemon that started them.
            ensure!(
                fields.get("AbandonProcessGroup") == Some(&Value::Bool(true)),
                "{}",
                unit.display()
            );
        }
        match Command::new("python3")
            .args([
                "-c",
                "import plistlib, sys; plistlib.load(open(sys.argv[1], 'rb'))",
            ])
            .arg(&unit)
            .output()
        {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("not asked: python3 is not installed");
            }
            output => {
                let output = output?;
                ensure!(
                    output.status.success(),
                    "{}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
    }
    Ok(())
}
