/* Whether rm has tables for a driver version: reads one a line, prints "known" or "unknown" for each. */
#include "rm/rm.h"

#include <stdio.h>
#include <string.h>

int main (void)
{
    char line[256];

    while (fgets (line, sizeof (line), stdin) != NULL) {
        line[strcspn (line, "\n")] = '\0';
        puts (rm_abi_find (line) != NULL ? "known" : "unknown");
    }
    return 0;
}
