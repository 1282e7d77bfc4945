/*
 * dlsym and dlvsym. The lookup of a name without a wrapper goes to the loader's function with the caller's return
 * address, and nothing else happens. A wrapped name is looked up by the loader first, and only a result that is the
 * driver's own function is replaced: a lookup that fails without this library fails alike with it.
 *
 * Runs in every process that preloads one of the two libraries, on the thread that calls dlsym or dlvsym, without a
 * lock.
 */
#include "dlsym.h"

#include "next.h"

#include "shim/elf.h"

#include <dlfcn.h>

extern char nvc_dlsym_stub[] __attribute__ ((visibility ("hidden")));
extern char nvc_dlvsym_stub[] __attribute__ ((visibility ("hidden")));

struct question {
    void *handle;
    const char *name, *version; /* version: NULL for dlsym */
    void *caller;
};

static struct answer answered (void *value) { return (struct answer) { 1, value }; }

static struct answer jump (const struct question *question)
{
    void *real = question->version == NULL ? (void *) next_dlsym () : (void *) next_dlvsym ();
    return (struct answer) { real == NULL, real };
}

/* The loader's lookup; RTLD_NEXT means the next library after this one. */
static void *find (const struct question *question, void *handle)
{
    if (question->version != NULL)
        return next_dlvsym () != NULL ? next_dlvsym () (handle, question->name, question->version) : NULL;
    return next_dlsym () != NULL ? next_dlsym () (handle, question->name) : NULL;
}

static bool is_libc (const struct link_map *object)
{
    return object != NULL && (elf_is_named (object, "libc.so.6") || elf_is_named (object, "libdl.so.2"));
}

/* Whether this object precedes this library in the link map. */
static bool is_before_self (const struct link_map *object)
{
    const struct link_map *self = elf_self ();
    for (const struct link_map *other = elf_first (); other != NULL && other != self; other = other->l_next)
        if (other == object)
            return true;
    return false;
}

/* The lookup of "dlsym" itself. An interposer after this library looks up the next one, or libc's: the stub as a result
 * would be an endless recursion. */
static struct answer answer_loader (const struct question *question, void *own)
{
    if (question->handle == RTLD_NEXT)
        return jump (question);
    void *found = find (question, question->handle);
    if (found == NULL || found == own || !is_libc (next_object (found)))
        return jump (question);
    const struct link_map *caller = next_object (question->caller);
    if (caller != NULL && !is_libc (caller) && !is_before_self (caller) && elf_symbol (caller, "dlsym") != NULL)
        return jump (question);
    return answered (own);
}

/* The lookup in the local scope of the calling library: one that was opened with RTLD_LOCAL and is linked with the
 * driver has the driver there. By a handle of dlopen, as a library that was loaded as a dependency has no scope to
 * search. */
static void *find_local (const struct question *question, const struct link_map *caller)
{
    void *handle = next_open_object (caller);
    if (handle == NULL)
        return NULL;
    void *found = find (question, handle);
    next_close (handle);
    return found;
}

/* In the global scope the wrapper's exported symbol precedes that of the driver's library, or of another interposer. */
static struct answer answer_global (const struct question *question, enum row row)
{
    void *found = find (question, RTLD_NEXT);
    if (found != NULL && !next_is_real (row, found))
        return answered (found);
    if (found == NULL) {
        void *local = find_local (question, next_object (question->caller));
        if (local == NULL || !next_is_real (row, local))
            return answered (find (question, RTLD_NEXT));
    }
    return answered (row_facts[row].answer);
}

static struct answer answer_driver (const struct question *question, enum row row)
{
    void *own = row_facts[row].answer, *found;
    if (question->handle == RTLD_NEXT) {
        struct link_map *caller = next_object (question->caller);
        if (caller == NULL || is_before_self (caller)) {
            found = find (question, RTLD_NEXT);
            return found == NULL ? answered (NULL) : jump (question);
        }
        found = find (question, RTLD_NEXT);
        if (found == NULL)
            found = find_local (question, caller);
        return found != NULL && next_is_real (row, found) ? answered (own) : jump (question);
    }
    found = find (question, question->handle);
    if (found == NULL)
        return jump (question);
    if (found == row_facts[row].exported)
        return answer_global (question, row);
    return next_is_real (row, found) ? answered (own) : jump (question);
}

static struct answer answer (const struct question *question)
{
    int name = name_find (question->name);
    if (name < 0 || next_dlsym () == NULL)
        return jump (question);
    if (name == NAME_DLSYM)
        return answer_loader (question, nvc_dlsym_stub);
    if (name == NAME_DLVSYM)
        return answer_loader (question, nvc_dlvsym_stub);
    return answer_driver (question, (enum row) name);
}

struct answer api_dlsym (void *handle, const char *name, void *caller)
{
    struct question question = { handle, name, NULL, caller };
    return answer (&question);
}

struct answer api_dlvsym (void *handle, const char *name, const char *version, void *caller)
{
    struct question question = { handle, name, version, caller };
    return answer (&question);
}
