/* What becomes of each kind of call: a half before the driver is asked, and one afterwards (rm.c). */
#ifndef NVC_RM_HANDLERS_H
#define NVC_RM_HANDLERS_H

#include "rm.h"

#include <stdbool.h>

enum call_kind {
    CALL_NONE,
    CALL_ALLOC,
    CALL_FREE,
    CALL_CONTROL,
    CALL_DUP,
    CALL_MEMORY,
    CALL_HEAP,
    CALL_UVM,
    CALL_SHARE,
    CALL_IDLE,
    CALL_MAPPING,
    CALL_KINDS
};
enum rm_verdict alloc_begin (struct rm *rm, struct rm_call *call);
void alloc_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict alloc_memory_begin (struct rm *rm, struct rm_call *call);
void alloc_memory_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict free_begin (struct rm *rm, struct rm_call *call);
void free_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict dup_begin (struct rm *rm, struct rm_call *call);
void dup_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict heap_begin (struct rm *rm, struct rm_call *call);
void heap_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict control_begin (struct rm *rm, struct rm_call *call);
void control_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict uvm_begin (struct rm *rm, struct rm_call *call);
void uvm_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict idle_begin (struct rm *rm, struct rm_call *call);
void idle_end (struct rm *rm, struct rm_call *call, bool done);
enum rm_verdict mapping_begin (struct rm *rm, struct rm_call *call);
void mapping_end (struct rm *rm, struct rm_call *call, bool done);

#endif
