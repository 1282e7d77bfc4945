/*
 * A container's memory, and a driver, around call_ioctl of the guard: process_vm_readv, process_vm_writev and ioctl are the
 * model's. The driver of release 580 follows the pointers and descriptors that the real one follows, by rm_driver.h, and
 * reports each that leads to what the guard does not have for this call: to a container's address, to one that an earlier
 * call left, or to a descriptor by the container's own number.
 */
#ifndef NVC_TEST_GUARD_MODEL_H
#define NVC_TEST_GUARD_MODEL_H

#include "driver_facts.h"
#include "guard/call.h"
#include "guard/guard_private.h"
#include "guard/process.h"
#include "guard/tenant.h"

#define MODEL_BRANCH 580u
/* The container's memory; nothing else of its is mapped. No program has anything at these addresses by itself. */
#define MODEL_ADDRESS 0x424200000000u
#define MODEL_SIZE (256u << 10)
/* The container's descriptor of /dev/nvidiactl. */
#define MODEL_DESCRIPTOR 100
#define MODEL_MEMORY 900 /* stands for the process's /proc/PID/mem */

struct model {
    struct guard guard;
    struct tenant *tenant;
    struct process *process; /* this one */
    uint8_t memory[MODEL_SIZE];
    /* What the driver does where the real one is free to do anything; NULL: all is well, and nothing is written. */
    uint32_t (*choose) (void);
    void (*report) (const char *what, uint32_t number);
    uint64_t calls; /* of the driver, for the tenant */
    uint32_t last_id;
    bool are_maps_unreadable, is_ending; /* the process's */
    uint8_t head[192]; /* of the last of them, as the driver got it */
};
extern struct model model;

void model_begin (void);
void model_end (void);
static inline void *model_at (uint64_t address) { return model.memory + (address - MODEL_ADDRESS); }
/* A call of the container's on a descriptor of its. */
struct answer model_call (int descriptor, uint32_t escape, uint32_t size, uint64_t address);

#endif
