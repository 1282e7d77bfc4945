/* Threads whose last request for managed memory was refused: one entry a thread. Not thread-local storage, of which a
 * preloaded library gets little (static TLS), and which early calls do not have yet. Implemented in refused.c. */
#ifndef NVC_SHIM_REFUSED_H
#define NVC_SHIM_REFUSED_H

#include <stdbool.h>
#include <stdint.h>

/* Entries. A further one replaces that of a thread that has ended, or else any. */
#define REFUSED_THREADS 256u

/* Records a refusal of the calling thread; thread: its id (gettid). */
void refused_set (uint32_t thread);
/* Whether the calling thread was refused since its last call of this. One load when there are no entries. */
bool refused_take (void);

#endif
