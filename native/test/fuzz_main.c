/* Runs a fuzz target on generated inputs: [inputs [seed [bytes]]]. The same numbers give the same inputs. bytes: of most inputs, at
 * the most; one in 16 is up to 4096 long. Or on the contents of files, as libFuzzer does: PATH... */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 4096

static int run_file (const char *path)
{
    uint8_t *data = malloc (LONGEST);
    FILE *file = fopen (path, "rb");
    size_t size;

    if (data == NULL || file == NULL) {
        perror (path);
        return 1;
    }
    size = fread (data, 1, LONGEST, file);
    fclose (file);
    data = realloc (data, size > 0 ? size : 1);
    LLVMFuzzerTestOneInput (data, size);
    free (data);
    printf ("%s\n", path);
    return 0;
}

int main (int argc, char **argv)
{
    if (argc > 1 && strchr (argv[1], '/') != NULL) {
        for (int i = 1; i < argc; i++)
            if (run_file (argv[i]) != 0)
                return 1;
        return 0;
    }

    unsigned long inputs = argc > 1 ? strtoul (argv[1], NULL, 10) : 1000;
    uint64_t state = (argc > 2 ? strtoull (argv[2], NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
    size_t most = argc > 3 ? strtoul (argv[3], NULL, 10) : 512;

    if (most == 0 || most > LONGEST) {
        fprintf (stderr, "bytes: 1 to %d\n", LONGEST);
        return 2;
    }
    for (unsigned long i = 0; i < inputs; i++) {
        size_t size = (size_t) (state >> 20) % (i % 16 == 0 ? LONGEST : most);
        /* Exactly as long as it says, so that the address sanitizer sees a read behind the end. */
        uint8_t *data = malloc (size > 0 ? size : 1);

        if (data == NULL)
            return 1;
        for (size_t at = 0; at < size; at++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            /* Many small numbers and some large ones, as structs have them. */
            data[at] = (state >> 60) < 9 ? (uint8_t) ((state >> 40) % 5) : (uint8_t) (state >> 32);
        }
        state = state * 6364136223846793005u + 1442695040888963407u;
        LLVMFuzzerTestOneInput (data, size);
        free (data);
    }
    printf ("%lu inputs\n", inputs);
    return 0;
}
