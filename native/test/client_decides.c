/* For tests: texts on standard input, each as "J", "G" or "T" and four bytes of length; an answer a text: 1 where a config.json may ask
 * for GPUs, or may have them, or a config.toml changes something; 2 where all that it changes is that crun comes first. */
#include "client/client.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main (void)
{
    int kind;

    while ((kind = getchar ()) != EOF) {
        uint32_t size;
        char *text;

        if (fread (&size, sizeof size, 1, stdin) != 1 || (text = malloc ((size_t) size + 1)) == NULL ||
            fread (text, 1, size, stdin) != size)
            return 1;
        text[size] = '\0';
        if (kind == 'T')
            putchar ("102"[runtime_config_is_usual (text, size)]);
        else
            putchar (runtime_may_ask (text, size, kind == 'G') ? '1' : '0');
        fflush (stdout);
        free (text);
    }
    return 0;
}
