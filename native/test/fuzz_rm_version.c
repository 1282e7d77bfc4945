/* Versions come from files of the host and of the container. */
#include "fuzz.h"
#include "rm/rm.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
    static const char letters[] = "0123456789.5.x";
    char *text = malloc (size + 1);

    if (text == NULL)
        return 0;
    for (size_t i = 0; i < size; i++)
        text[i] = letters[data[i] % (sizeof (letters) - 1)];
    text[size] = '\0';
    rm_abi_find (text);
    memcpy (text, data, size);
    rm_abi_find (text);
    free (text);
    return 0;
}
