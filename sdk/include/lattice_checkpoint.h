/* For applications under Lattice: receive requests to save themselves, through shared memory (--checkpoint=shmem).
 *
 * Link with liblattice_checkpoint.a: cc train.c liblattice_checkpoint.a -lpthread -ldl -lm. examples/train.c is a
 * complete program. One process of each node answers. When the program runs again, it finds its saved files in the
 * directory that $LATTICE_RESTORE_FROM names.
 */
#ifndef LATTICE_CHECKPOINT_H
#define LATTICE_CHECKPOINT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A listener: it shows the agent that a process listens, from open until close or the end of the process. A forked
 * child that has not called exec shares it. If such a child outlives a process that ended without close, the agent
 * waits for an answer until the deadline. */
typedef struct lattice_checkpoint lattice_checkpoint;

/* A request to save. */
typedef struct lattice_checkpoint_request {
    uint64_t deadline_ms; /* milliseconds since 1970; the agent waits half as long again */
    uint32_t number;      /* identifies the request in the answer */
    char token[64];       /* the directory's name, new for each request */
    char directory[4096]; /* the existing directory into which everything of this node must be saved */
} lattice_checkpoint_request;

/* Opens the page that the environment names. On failure it returns NULL and sets errno:
 * ENOENT: the environment names no page; outside of Lattice, for example.
 * ENXIO: the page does not exist; for example in a container or chroot without a mount of its directory.
 * Any other: the page cannot be opened, or has another version. */
lattice_checkpoint *lattice_checkpoint_open(void);

void lattice_checkpoint_close(lattice_checkpoint *listener);

/* 1: there is a request without an answer, and it was copied to *request. 0: there is none. -1: the directory's path is
 * too long for the request. If there is no request, a check costs two loads from memory and no system call. A NULL
 * listener never has a request. */
int lattice_checkpoint_asked(const lattice_checkpoint *listener, lattice_checkpoint_request *request);

/* The same, but waits for a request for at most this time. */
int lattice_checkpoint_wait(const lattice_checkpoint *listener, uint64_t at_most_ms, lattice_checkpoint_request *request);

/* Reports the progress, and the remaining time (-1: not known). Only for people: the deadline does not change. */
void lattice_checkpoint_progress(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, uint32_t percent,
                                 int64_t left_ms);

/* Reports that everything of this node is written. `step` is the same on all nodes. `files` and `bytes` are compared
 * with the files in the directory. -1: not reported. */
void lattice_checkpoint_done(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, int64_t step, int64_t files,
                             int64_t bytes);

/* The same, with the simulated time in seconds, 0 to 1e28. */
void lattice_checkpoint_done_at(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, double time_seconds,
                                int64_t step, int64_t files, int64_t bytes);

/* Reports that the work cannot be saved: the previous checkpoint stays, and the work continues. */
void lattice_checkpoint_failed(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, const char *why);

/* Requests to be asked again after this time: at most five minutes for all deferrals of one checkpoint together. */
void lattice_checkpoint_defer(const lattice_checkpoint *listener, const lattice_checkpoint_request *request, uint64_t time_ms);

#ifdef __cplusplus
}
#endif

#endif
