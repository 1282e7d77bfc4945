/* The few lines of the Test Anything Protocol that the unit programs print; tests/native/test_tap.py reads them. */
#ifndef NVC_TEST_TAP_H
#define NVC_TEST_TAP_H

#include <stdbool.h>
#include <stdio.h>

static int tap_count;
static int tap_failed;

static inline void tap_ok (bool good, const char *claim)
{
    tap_count++;
    tap_failed += !good;
    printf ("%sok %d - %s\n", good ? "" : "not ", tap_count, claim);
}

static inline int tap_done (void)
{
    printf ("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
