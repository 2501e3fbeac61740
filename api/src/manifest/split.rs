//! Documents of a file.

/// The text of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk<'a> {
    /// From its `---`, if it has one.
    pub(super) text: &'a str,
    /// Line on which it starts, from 1.
    pub(super) line: usize,
}

/// Cuts at every line that starts with `---` (kept: it may carry content) or `...` (dropped). YAML allows such a line
/// nowhere else, block scalars and quoted text included, so that no parser is needed to find them. Documents without
/// content are left out.
pub(super) fn split(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let (mut start, mut start_line) = (0, 1);
    let (mut at, mut number) = (0, 0);
    let push = |from: usize, to: usize, line: usize, chunks: &mut Vec<_>| {
        let body = text.get(from..to).unwrap_or_default();
        // Files that were put together each bring their mark.
        let body = body.strip_prefix('\u{feff}').unwrap_or(body);
        if !is_empty(body) {
            chunks.push(Chunk { text: body, line });
        }
    };
    for line in text.split_inclusive('\n') {
        number += 1;
        let bare = line.strip_prefix('\u{feff}').unwrap_or(line);
        if is_marker(bare, "---") {
            push(start, at, start_line, &mut chunks);
            (start, start_line) = (at, number);
        } else if is_marker(bare, "...") {
            push(start, at, start_line, &mut chunks);
            (start, start_line) = (at + line.len(), number + 1);
        }
        at += line.len();
    }
    push(start, at, start_line, &mut chunks);
    chunks
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n']))
}

/// Nothing but a marker, comments, blank lines and version directives.
fn is_empty(body: &str) -> bool {
    body.lines().enumerate().all(|(index, line)| {
        let line = if index == 0 && is_marker(line, "---") {
            &line[3..]
        } else {
            line
        };
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line.starts_with("%YAML ")
    })
}
