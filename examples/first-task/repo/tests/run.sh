#!/bin/sh
# Builds the tests and runs them.
set -eu
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
${CC:-cc} -Wall -Werror -o "$out/test_leap" tests/test_leap.c src/leap.c
"$out/test_leap"
