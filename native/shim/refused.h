/* Threads that have just been refused managed memory: one entry a thread. No thread-local storage, which a preloaded
 * library may not have (its room at a program's start is small) and which is not there yet for early calls. */
#ifndef NVC_SHIM_REFUSED_H
#define NVC_SHIM_REFUSED_H

#include <stdbool.h>
#include <stdint.h>

/* Threads that may be refused at once. One more takes the place of one that has ended, or else of another. */
#define REFUSED_THREADS 256u

/* The calling thread, by its number (gettid), was refused. */
void refused_set (uint32_t thread);
/* True, once, when the calling thread was refused since it last asked. One load when no thread was. */
bool refused_take (void);

#endif
