/* For applications that run under Lattice: being asked to save themselves, through shared memory (--checkpoint=shmem).
 *
 * Link with liblattice_checkpoint.a: cc train.c liblattice_checkpoint.a -lpthread -ldl -lm. examples/train.c is a whole program.
 * One process of each node answers. Run again, a program finds what it saved in the directory that $LATTICE_RESTORE_FROM names.
 */
#ifndef LATTICE_CHECKPOINT_H
#define LATTICE_CHECKPOINT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says to the agent that somebody listens, from open to close or to the end of the process. A child that was forked without exec shares
 * that: where it outlives a process that ended without close, the agent waits for an answer until the time is over. */
typedef struct lattice_checkpoint lattice_checkpoint;

/* What is asked for. */
typedef struct lattice_checkpoint_request {
    uint64_t deadline_ms; /* milliseconds since 1970; the agent waits half as long again */
    uint32_t number;      /* names the request in the answer */
    char token[64];       /* the directory's name, new with each request */
    char directory[4096]; /* into which all of this node is to be saved: it is there */
} lattice_checkpoint_request;

/* NULL, and errno ENOENT, where nothing in the environment asks for checkpoints in shared memory: outside of Lattice, for one.
 * ENXIO: it does, and the page is not there: in a container or chroot, for one, into which its directory was not mounted.
 * Another errno: the page cannot be opened, or is of another version. */
lattice_checkpoint *lattice_checkpoint_open(void);

void lattice_checkpoint_close(lattice_checkpoint *listener);

/* 1 and the request where one stands, which is not answered yet; else 0. Two loads from memory, no call of the system.
 * -1: the directory's path has no room. A listener of NULL is never asked. */
int lattice_checkpoint_asked(const lattice_checkpoint *listener, lattice_checkpoint_request *request);

/* The same, waiting for one so long at most. */
int lattice_checkpoint_wait(const lattice_checkpoint *listener, uint64_t at_most_ms, lattice_checkpoint_request *request);

/* Says how far it is, and how long it will take yet (-1: unknown). For people: the deadline stays. */
void lattice_checkpoint_progress(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, uint32_t percent,
                                 int64_t left_ms);

/* All of this node is written. step is the same on all nodes; files and bytes are compared with what lies there; -1: not told. */
void lattice_checkpoint_done(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, int64_t step, int64_t files,
                             int64_t bytes);

/* The same, with the time of what is simulated, in seconds, 0 to 1e28. */
void lattice_checkpoint_done_at(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, double time_seconds,
                                int64_t step, int64_t files, int64_t bytes);

/* It cannot be saved: the checkpoint before this one stays, and the work runs on. */
void lattice_checkpoint_failed(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, const char *why);

/* Asks to be asked again after so long: five minutes at most, all deferrals of one checkpoint together. */
void lattice_checkpoint_defer(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, uint64_t time_ms);

#ifdef __cplusplus
}
#endif

#endif
