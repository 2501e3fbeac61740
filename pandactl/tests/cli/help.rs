//! The help of every command, as a golden file. `UPDATE_GOLDEN=1` writes it anew.

use std::fmt::Write as _;
use std::path::Path;

fn add(command: &mut clap::Command, path: &str, out: &mut String) {
    let path = format!(
        "{path}{}{}",
        if path.is_empty() { "" } else { " " },
        command.get_name()
    );
    writeln!(
        out,
        "## {path}\n\n{}",
        command.render_long_help().to_string().trim_end()
    )
    .unwrap();
    writeln!(out).unwrap();
    for inner in command
        .get_subcommands_mut()
        .filter(|inner| inner.get_name() != "help")
    {
        add(inner, &path, out);
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test runner says whether to write the file"
)]
fn help_is_as_it_was_reviewed() {
    let mut command = pandactl::cli::command()
        .term_width(100)
        .color(clap::ColorChoice::Never);
    command.build();
    let mut text = String::new();
    add(&mut command, "", &mut text);
    let text: String = text
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/help.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        text == wanted,
        "the help has changed; look at it and run the test with UPDATE_GOLDEN=1:\n{}",
        first_difference(&wanted, &text)
    );
}

fn first_difference(old: &str, new: &str) -> String {
    let at = old
        .lines()
        .zip(new.lines())
        .position(|(a, b)| a != b)
        .unwrap_or(old.lines().count().min(new.lines().count()));
    format!(
        "line {}:\n- {}\n+ {}",
        at + 1,
        old.lines().nth(at).unwrap_or(""),
        new.lines().nth(at).unwrap_or("")
    )
}

#[test]
fn the_arguments_are_sound() {
    pandactl::cli::command().debug_assert();
}
