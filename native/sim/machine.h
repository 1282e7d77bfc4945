/*
 * The description of a simulated machine. machine_parse.c parses it, machine_load.c finds it.
 *
 * Text, one "key=value" a line. nvc/sim/machine_text.py writes it from the JSON description; both sides have the same
 * keys, and tests/nvc/sim/test_machine_text.py fails when a key is on one side alone. The first line is
 * "nvc-sim-machine=1" (the format's version) and the last is "end=<number of GPUs>", so that a truncated text is an
 * error. "gpu=<index>" opens a GPU, "mig=<index>" a MIG device of the GPU before it.
 */
#ifndef NVC_SIM_MACHINE_H
#define NVC_SIM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHINE_FORMAT 1
#define MACHINE_MAX_GPUS 64
#define MACHINE_MAX_MIGS 7 /* NVML's number for every GPU with MIG */
#define MACHINE_MAX_FAULTS 8
#define MACHINE_TEXT_LIMIT (128 * 1024)
/* A file here overrides the description in the library. */
#define MACHINE_FILE "/etc/nvc-sim/machine"
#define MACHINE_ENVIRONMENT "NVC_SIM_MACHINE"

struct machine_mig {
    char uuid[96];
    char profile[32];   /* "1g.10gb" */
    char gi_access[96]; /* path that must be readable for the GPU instance to be usable */
    char ci_access[96];
    uint32_t gi;
    uint32_t ci;
    uint32_t gi_slices;
    uint32_t ci_slices;
    uint64_t memory; /* bytes */
};

struct machine_gpu {
    char uuid[96];
    char model[96];
    char node[64]; /* "/dev/nvidia0" */
    uint32_t minor;
    uint32_t brand;
    uint32_t domain;
    uint32_t bus;
    uint32_t device;
    uint32_t pci_id;
    uint32_t pci_subsystem;
    uint32_t arch_major;
    uint32_t arch_minor;
    uint32_t mig_capable; /* 0 or 1 */
    uint32_t mig_enabled; /* 0 or 1 */
    uint32_t mig_count;   /* of migs[] */
    uint64_t memory;      /* bytes */
    uint64_t memory_reserved;
    struct machine_mig migs[MACHINE_MAX_MIGS];
};

enum machine_fault_kind { FAULT_ERROR, FAULT_HANG, FAULT_CRASH, FAULT_SLOW };

/* Fault injection for calls of a function (in any version): "fault=nvmlInit error 18", "... hang", "... crash",
 * "... slow 500". */
struct machine_fault {
    char function[64];
    enum machine_fault_kind kind;
    uint32_t value; /* NVML error number, or milliseconds */
};

/* Whether and how a program's ordinary memory can be in video memory (PAGEABLE_MEM_ACCESS of UVM). */
enum machine_pageable { PAGEABLE_OFF, PAGEABLE_HMM, PAGEABLE_ATS };

struct machine {
    char name[64];
    char driver[80];
    char nvml[80];
    char control[64]; /* node without which there is no driver; "": /dev/nvidiactl */
    char store[192];  /* WSL's driver store; "" on other machines */
    uint32_t cuda;    /* 13000 is 13.0 */
    uint32_t nodes;   /* 1: a GPU is there only if its device node can be used */
    uint32_t pageable; /* enum machine_pageable */
    uint32_t gpu_count;
    uint32_t fault_count;
    struct machine_gpu gpus[MACHINE_MAX_GPUS];
    struct machine_fault faults[MACHINE_MAX_FAULTS];
};

/* Reads `size` bytes of `text` into `machine`. Returns true, or false with the line and the reason in `problem`. */
bool machine_parse (const char *text, size_t size, struct machine *machine, char *problem, size_t problem_size);

enum machine_source { MACHINE_FOUND, MACHINE_NONE, MACHINE_BAD };

/* Finds and reads this process's machine: environment variable, file, then the description in the library. */
enum machine_source machine_load (struct machine *machine, char *problem, size_t problem_size);

#endif
