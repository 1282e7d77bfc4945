/* A program under interposers of dlsym: names are found as without them, and every interposer in the chain is called.
 * Arguments: their counters. */
#include <dlfcn.h>
#include <stdio.h>

int main (int count, char **words)
{
    void *libc = dlopen ("libc.so.6", RTLD_NOW);
    void *(*again) (void *, const char *);
    *(void **) &again = dlsym (libc, "dlsym");
    for (int i = 0; i < 3; i++)
        if (dlsym (RTLD_DEFAULT, "puts") != (void *) puts || dlsym (RTLD_NEXT, "puts") != (void *) puts ||
            dlsym (libc, "puts") != (void *) puts || again (libc, "puts") != (void *) puts)
            return 1;
    for (int i = 1; i < count; i++) {
        unsigned int *counter = dlsym (RTLD_DEFAULT, words[i]);
        printf ("%s %s\n", words[i], counter == NULL ? "missing" : *counter > 0 ? "asked" : "passed by");
    }
    return 0;
}
