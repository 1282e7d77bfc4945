/* For the property tests: a description on stdin; prints "ok" or what is wrong with it. Never anything else. */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>

static struct machine machine;

int main (void)
{
    char problem[128] = "";
    char *text = malloc (MACHINE_TEXT_LIMIT + 2);
    size_t size = text != NULL ? fread (text, 1, MACHINE_TEXT_LIMIT + 2, stdin) : 0;

    if (text == NULL)
        return 2;
    /* Shrunk to its exact size, so that the address sanitizer sees a read behind the end. */
    char *exact = realloc (text, size > 0 ? size : 1);
    if (exact == NULL)
        return 2;
    puts (machine_parse (exact, size, &machine, problem, sizeof (problem)) ? "ok" : problem);
    free (exact);
    return 0;
}
