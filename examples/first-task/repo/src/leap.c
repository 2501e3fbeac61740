#include "leap.h"

int is_leap_year(int year)
{
    return year % 4 == 0;
}
