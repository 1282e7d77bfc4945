/* Parts of guard_player: messages between its processes, and what it has to know of a driver. */
#ifndef NVC_TEST_PLAYER_H
#define NVC_TEST_PLAYER_H

#include "sequence.h"

#include <stdbool.h>
#include <stdint.h>

#define OWN_DESCRIPTOR 64 /* and above: above those of the steps */

struct message {
    enum { STEP, FILE_PASSED, DONE } what;
    struct step step;
    unsigned slot;
};

/* player_talk.c */
_Noreturn void player_fail (const char *what);
/* The folder of the sockets. */
void player_talk_in (const char *path);
/* A process has one inbox; a child makes its own. */
void player_open_inbox (unsigned number);
int player_inbox (void);
bool player_say (unsigned to, const struct message *message, int file);
/* file: the descriptor that came with it; -1: none. */
bool player_hear (struct message *message, int *file);

/* player_driver.c. The GPU: the first simulated one, or PLAYED_GPU, 32 hexadecimal digits; its node: PLAYED_NODE, /dev/nvidia0. */
const char *player_node (enum manager_node node);
/* The device instance that the driver has for it, asked with a client of the caller's own. */
uint32_t player_find_instance (void);
/* As libcuda: a second file of UVM, without which the driver takes no address space for the first one. */
void player_begin_uvm (int file);

/* player_maps.c, beside world_mmap and task_unmap. What a process has mapped is gone with its address space, unless a file is shared. */
void player_leave_space (const struct task *task);
/* Of a child: they are its parent's. */
void player_forget_maps (void);

#endif
