#ifndef LEAP_H
#define LEAP_H

/* 1 when YEAR has 366 days in the Gregorian calendar, otherwise 0. */
int is_leap_year(int year);

#endif
