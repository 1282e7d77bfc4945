/* The rows as a table, and the row of a name: one pass over the name and one comparison,
 * however many rows there are. */
#include "wrap.h"

#include "names.h" /* made by names.py from rows.def */

#include <string.h>

const struct row_facts row_facts[ROWS] = {
#define WRAP(result, symbol, parameters, base, version, stream, library) \
    { #symbol, #base, version, STREAM_##stream, LIBRARY_##library, (void *) symbol, (void *) ANSWER (symbol) },
#include API_ROWS
#undef WRAP
#undef USE
#define WRAP(result, symbol, parameters, base, version, stream, library)
#define USE(result, symbol, parameters, library) { #symbol, "", 0, STREAM_BOTH, LIBRARY_##library, NULL, NULL },
#include API_ROWS
#undef WRAP
#undef USE
};

_Static_assert (NAME_NONE == WRAPPED + 2, "names.h is not of these rows");

int name_find (const char *name)
{
    if (name == NULL || (name[0] != 'c' && name[0] != 'n' && name[0] != 'd'))
        return -1;
    uint32_t value = 0;
    for (unsigned length = 0; name[length] != '\0'; length++) {
        if (length == NAME_LONGEST)
            return -1;
        value = (value ^ (uint8_t) name[length]) * NAME_MULTIPLIER;
    }
    unsigned index = NAME_SLOTS[value >> NAME_SHIFT];
    if (index == NAME_NONE)
        return -1;
    const char *known = index == NAME_DLSYM ? "dlsym" : index == NAME_DLVSYM ? "dlvsym" : row_facts[index].symbol;
    return strcmp (name, known) == 0 ? (int) index : -1;
}
