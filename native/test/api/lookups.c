/*
 * Looks names up, from a program (-DMAIN), from a library and from its constructor, and prints object and symbol of
 * each result. Arguments: [names of libraries to open first, "-l" before it for RTLD_LOCAL ...] -- names.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__ ((visibility ("default")))

API void library_lookups (const char *const *names, void *const *handles);

static void say (FILE *out, const char *from, const char *way, const char *name, void *found)
{
    Dl_info information = { 0 };
    const char *object = "nothing";
    if (found != NULL && dladdr (found, &information) != 0) {
        object = strrchr (information.dli_fname, '/');
        object = object != NULL ? object + 1 : information.dli_fname;
    }
    fprintf (out, "%s %s %s: %s %s\n", from, way, name, object,
             information.dli_sname != NULL && found == information.dli_saddr ? information.dli_sname : "-");
}

static void lookups (FILE *out, const char *from, const char *const *names, void *const *handles)
{
    char way[24];
    for (; *names != NULL; names++) {
        say (out, from, "default", *names, dlsym (RTLD_DEFAULT, *names));
        for (int again = 0; again < 3; again++) {
            dlerror ();
            void *found = dlsym (RTLD_NEXT, *names);
            bool wrong = dlerror () != NULL;
            say (out, from, (found == NULL) == wrong ? "next" : "next-wrong-error", *names, found);
        }
        say (out, from, "default-2.34", *names, dlvsym (RTLD_DEFAULT, *names, "GLIBC_2.34"));
        for (int i = 0; handles[i] != NULL; i++) {
            snprintf (way, sizeof (way), "handle%d", i);
            dlerror ();
            void *found = dlsym (handles[i], *names);
            say (out, from, (found == NULL) == (dlerror () != NULL) ? way : "wrong-error", *names, found);
        }
    }
}

#ifdef MAIN
struct run {
    const char *const *names;
    void *const *handles;
    char text[1 << 16];
};

static void *in_thread (void *argument)
{
    struct run *run = argument;
    FILE *out = fmemopen (run->text, sizeof (run->text), "w");
    for (int i = 0; i < 50; i++) {
        rewind (out);
        lookups (out, "thread", run->names, run->handles);
    }
    fclose (out);
    return NULL;
}

int main (int count, char **words)
{
    enum { THREADS = 32 };
    static struct run runs[THREADS];
    static pthread_t threads[THREADS];
    void *handles[16] = { dlopen (NULL, RTLD_NOW), dlopen ("libc.so.6", RTLD_NOW) };
    int number = 2, scope = RTLD_GLOBAL, word = 1, different = 0;
    for (; word < count && strcmp (words[word], "--") != 0; word++) {
        if (strcmp (words[word], "-l") == 0) {
            scope = RTLD_LOCAL;
            continue;
        }
        if (strcmp (words[word], "-m") == 0)
            handles[number] = dlmopen (LM_ID_NEWLM, words[++word], RTLD_NOW);
        else
            handles[number] = dlopen (words[word], RTLD_NOW | scope);
        if (handles[number] == NULL)
            printf ("cannot open %s\n", words[word]);
        else
            number++;
    }
    const char *const *names = (const char *const *) words + (word < count ? word + 1 : word);
    lookups (stdout, "program", names, handles);
    library_lookups (names, handles);
    for (int i = 0; i < THREADS; i++) {
        runs[i].names = names;
        runs[i].handles = handles;
        pthread_create (&threads[i], NULL, in_thread, &runs[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join (threads[i], NULL);
        different += strcmp (runs[i].text, runs[0].text) != 0;
    }
    fputs (runs[0].text, stdout);
    printf ("threads that differ: %d\n", different);
    return 0;
}
#else
void library_lookups (const char *const *names, void *const *handles) { lookups (stdout, "library", names, handles); }

__attribute__ ((constructor)) static void at_load (void)
{
    static const char *const names[] = {
        "puts", "curl_easy_init", "cublasCreate_v2", "customer_cuMemAlloc_v2", "cudaMalloc", NULL
    };
    void *const handles[] = { dlopen (NULL, RTLD_NOW), NULL };
    lookups (stdout, "constructor", names, handles);
}

/* Names that programs look up and that are not the driver's. */
API int curl_easy_init (void);
int curl_easy_init (void) { return 1; }
API int cublasCreate_v2 (void);
int cublasCreate_v2 (void) { return 2; }
API int cudaMalloc (void);
int cudaMalloc (void) { return 3; }
API int cudnnCreate (void);
int cudnnCreate (void) { return 4; }
API int customer_cuMemAlloc_v2 (void);
int customer_cuMemAlloc_v2 (void) { return 5; }
#endif
