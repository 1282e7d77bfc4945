#include "process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "identity.h"
#include "limits.h"
#include "plain.h"
#include "raw.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#define PAGE 4096u

struct process shim_process;

static struct token *token_of (struct process *process)
{
    struct token *token = LOAD (process->token), *expected = NULL;

    if (token)
        return token;
    token = raw_pages (PAGE);
    if (!token)
        return NULL;
    process->wiped = RAW3 (SYS_madvise, token, PAGE, MADV_WIPEONFORK) == 0;
    if (__atomic_compare_exchange_n (&process->token, &expected, token, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return token;
    RAW2 (SYS_munmap, token, PAGE);
    return expected;
}

/* A new process, perhaps a child: what is kept is the token and the mapped limits. The parent's region stays mapped,
 * and with it the lock of the parent's slot; its rm's memory is the child's copy, and of no use. */
static void begin (struct process *process)
{
    struct process *p = process;

    files_forget (&p->files);
    p->looked = p->known = p->usable = p->unknown_driver = p->attached = p->has_managed = p->in_managed = false;
    p->log_looked = false;
    p->abi = NULL;
    p->rm = NULL;
    p->thread = THREAD_NONE;
    p->regrouped = p->capped = p->frozen = 0;
    p->own = 0;
    memset (&p->memory, 0, sizeof p->memory);
    memset (p->applied, 0, sizeof p->applied);
    host_set (&p->host);
}

static struct process *enter (struct process *process, struct token *token, uint64_t *signals)
{
    uint32_t pid = (uint32_t) RAW0 (SYS_getpid), expected = 0;

    for (;;) {
        uint32_t state = LOAD (token->state);

        if (state == 2 && token->pid == pid)
            break;
        if (state == 2 && process->wiped)
            return NULL;
        if (state == 2) { /* an old kernel, and a child of fork */
            memset (&token->lock, 0, sizeof token->lock);
            token->pid = 0;
            STORE (token->state, 0u);
        }
        expected = 0;
        if (__atomic_compare_exchange_n (&token->state, &expected, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            uint64_t before = signals_block (0);

            begin (process);
            token->pid = pid;
            STORE (token->state, 2u);
            signals_restore (before);
        } else {
            raw_rest (10000);
        }
    }
    *signals = lock_take (&token->lock);
    return process;
}

struct process *process_enter (uint64_t *signals)
{
    struct token *token = token_of (&shim_process);

    return token ? enter (&shim_process, token, signals) : NULL;
}

struct process *process_enter_known (uint64_t *signals)
{
    struct token *token = LOAD (shim_process.token);

    if (!token || LOAD (token->state) != 2 || token->pid != (uint32_t) RAW0 (SYS_getpid))
        return NULL;
    return enter (&shim_process, token, signals);
}

void process_leave (struct process *process, uint64_t signals)
{
    lock_give (&process->token->lock, signals);
}

/* The two paths: a container's, or the environment's where there is no container's file and the program has no more
 * rights than its caller. */
static void find_limits (struct process *process)
{
    const char *limits = SHARE_LIMITS_PATH, *region = SHARE_REGION_PATH;
    bool there;

    process->shared = limits_map (limits, &there);
    if (!there && !identity_secure ()) {
        limits = identity_variable (SHARE_LIMITS_ENVIRONMENT);
        region = identity_variable (SHARE_REGION_ENVIRONMENT);
        process->shared = limits ? limits_map (limits, &there) : NULL;
        if (region && strlen (region) < sizeof process->region_variable) {
            memcpy (process->region_variable, region, strlen (region) + 1);
            region = process->region_variable;
        } else {
            region = NULL;
        }
    }
    process->region_path = region;
}

void process_look (struct process *process)
{
    uint32_t generation;

    if (!process->shared)
        find_limits (process);
    if (!process->shared)
        return;
    generation = LOAD (process->shared->generation);
    if (process->looked && generation == process->generation)
        return;
    process->looked = true;
    process->usable = limits_read (process->shared, &process->fresh);
    process->generation = generation;
    if (!process->usable)
        return;
    process->generation = process->fresh.generation;
    process->limits = process->fresh;
    process->known = true;
    process->regrouped = ~0u;
}

/* Without limits there is no table of nodes; what can be told by name and number then is enough to refuse memory. */
static enum rm_node kind_without_limits (int descriptor, const struct stat *file)
{
    char link[32] = "/proc/self/fd/", path[256], *digit = link + 14, digits[12];
    int length = 0, begin_of_name = 0;
    long got;

    if (!S_ISCHR (file->st_mode) && !S_ISREG (file->st_mode))
        return RM_NODE_OTHER;
    do
        digits[length++] = (char) ('0' + descriptor % 10);
    while ((descriptor /= 10) > 0);
    while (length)
        *digit++ = digits[--length];
    *digit = '\0';
    got = RAW4 (SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (got < 0)
        return RM_NODE_OTHER;
    path[got] = '\0';
    for (int i = 0; i < got; i++)
        if (path[i] == '/')
            begin_of_name = i + 1;
    if (strcmp (path + begin_of_name, "nvidiactl") == 0 ||
        (S_ISCHR (file->st_mode) && file->st_rdev == makedev (195, 255)))
        return RM_NODE_CONTROL;
    return strcmp (path + begin_of_name, "nvidia-uvm") == 0 ? RM_NODE_UVM : RM_NODE_OTHER;
}

enum rm_node process_node_kind (struct process *process, int descriptor)
{
    struct stat file;

    if (RAW2 (SYS_fstat, descriptor, &file) != 0)
        return RM_NODE_OTHER;
    return process->known ? limits_node_kind (&process->limits, &file) : kind_without_limits (descriptor, &file);
}

bool process_knows_driver (struct process *process)
{
    char version[64];
    long length;

    if (process->abi || process->unknown_driver)
        return process->abi != NULL;
    if (process->known) {
        process->abi = rm_abi_find (process->limits.driver);
    } else {
        length = raw_read_file ("/sys/module/nvidia/version", version, sizeof version);
        if (length > 0 && version[length - 1] == '\n')
            version[length - 1] = '\0';
        /* The calls that take memory are the same in every version that rm knows. */
        process->abi = rm_abi_find (length > 0 ? version : "580.105.08");
    }
    process->unknown_driver = process->abi == NULL;
    return !process->unknown_driver;
}

bool process_attach (struct process *process)
{
    if (!files_begin (&process->files))
        return false;
    if (!process->attached) {
        STORE (process->attached, region_attach (&process->region, process->region_path));
        if (process->attached && process->unknown_driver) {
            __atomic_store_n (&process->region.header->unknown_driver, 1, __ATOMIC_RELAXED);
            log_note (process, "unknown-driver", 0);
        }
        if (process->attached && process->region.private)
            log_note (process, "no-region", 0);
        if (process->attached && !process->usable)
            log_note (process, "no-limits", 0);
    }
    if (process->attached && process->abi && !process->rm)
        process->rm = rm_create (process->abi, RM_POSTURE_SHIM, &process->host, process);
    return process->attached && (process->rm || process->unknown_driver);
}
