#include <stdio.h>

#include "../src/leap.h"

static int failures;

static void expect(int year, int want)
{
    int got = is_leap_year(year);
    printf("%s %d: want %d, got %d\n", got == want ? "ok  " : "FAIL", year, want, got);
    failures += got != want;
}

int main(void)
{
    expect(2023, 0);
    expect(2024, 1);
    expect(1900, 0);
    expect(2000, 1);
    return failures != 0;
}
