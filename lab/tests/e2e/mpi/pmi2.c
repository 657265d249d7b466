/* One rank that speaks PMI-2 by Slurm's library, without any MPI.
 * pmi2 exchange NODES [close]   keys, attributes of the node, a ring, what is refused; close: every descriptor that it inherits
 * pmi2 abort                    rank 1 aborts with 7, and the others wait in a fence */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    /* After init this ends the launch: no peer waits for ever. */
    exit(9);
}

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != PMI2_SUCCESS)                                                                                    \
            fail(#call);                                                                                               \
    } while (0)

static void must_be(const char *have, const char *expected)
{
    if (strcmp(have, expected) != 0) {
        fprintf(stderr, "\"%s\" is not \"%s\"\n", have, expected);
        fail("another value");
    }
}

static void keys(void)
{
    char job[256], key[64], value[1024], expected[64];
    int length;

    MUST(PMI2_Job_GetId(job, sizeof job));
    snprintf(key, sizeof key, "card-%d", rank);
    snprintf(value, sizeof value, "of;%d;=x;", rank);
    MUST(PMI2_KVS_Put(key, value));
    MUST(PMI2_KVS_Fence());
    for (int peer = 0; peer < size; peer++) {
        snprintf(key, sizeof key, "card-%d", peer);
        snprintf(expected, sizeof expected, "of;%d;=x;", peer);
        MUST(PMI2_KVS_Get(job, peer, key, value, sizeof value, &length));
        must_be(value, expected);
    }
    if (PMI2_KVS_Get(job, PMI2_ID_NULL, "nobody's", value, sizeof value, &length) == PMI2_SUCCESS)
        fail("a key of nobody is found");
}

static void job_attributes(int nodes)
{
    char value[1024], expected[64];
    int found;

    MUST(PMI2_Info_GetJobAttr("universeSize", value, sizeof value, &found));
    if (!found || atoi(value) != size)
        fail("universeSize");
    MUST(PMI2_Info_GetJobAttr("PMI_process_mapping", value, sizeof value, &found));
    snprintf(expected, sizeof expected, "(vector,(0,%d,%d))", nodes, size / nodes);
    must_be(value, expected);
    MUST(PMI2_Info_GetJobAttr("cartDims", value, sizeof value, &found));
    if (found)
        fail("cartDims");
}

/* Each rank waits for the other's attribute, so one of them waits before it exists. */
static void node_attributes(void)
{
    char value[1024];
    int found, local = atoi(getenv("MPI_LOCALRANKID"));

    MUST(PMI2_Info_GetNodeAttr("nothing", value, sizeof value, &found, 0));
    if (found)
        fail("an attribute of nobody is found");
    if (local == 0) {
        MUST(PMI2_Info_GetNodeAttr("question", value, sizeof value, &found, 1));
        must_be(value, "which node?");
        MUST(PMI2_Info_PutNodeAttr("answer", getenv("LATTICE_NODE")));
    } else {
        if (local == 1)
            MUST(PMI2_Info_PutNodeAttr("question", "which node?"));
        MUST(PMI2_Info_GetNodeAttr("answer", value, sizeof value, &found, 1));
        must_be(value, getenv("LATTICE_NODE"));
    }
}

static void ring(void)
{
    char mine[64], left[64], right[64], expected[64];
    int place, places;

    snprintf(mine, sizeof mine, "at-%d", rank);
    MUST(PMIX_Ring(mine, &place, &places, left, right, sizeof left));
    if (place != rank || places != size)
        fail("the place in the ring");
    snprintf(expected, sizeof expected, "at-%d", (rank + size - 1) % size);
    must_be(left, expected);
    snprintf(expected, sizeof expected, "at-%d", (rank + 1) % size);
    must_be(right, expected);
}

static void names(void)
{
    char port[256];

    if (rank == 0)
        MUST(PMI2_Nameserv_publish("ocean", NULL, "here;1"));
    MUST(PMI2_KVS_Fence());
    MUST(PMI2_Nameserv_lookup("ocean", NULL, port, sizeof port));
    must_be(port, "here;1");
    MUST(PMI2_KVS_Fence());
    if (rank == 0)
        MUST(PMI2_Nameserv_unpublish("ocean", NULL));
    MUST(PMI2_KVS_Fence());
    if (PMI2_Nameserv_lookup("ocean", NULL, port, sizeof port) == PMI2_SUCCESS)
        fail("a name that was taken back is found");
}

static void no_spawn(void)
{
    const char *commands[] = {"/bin/true"}, **arguments[] = {NULL};
    int counts[] = {0}, most[] = {1}, errors[1];
    char job[256];

    if (PMI2_Job_Spawn(1, commands, counts, arguments, most, NULL, NULL, 0, NULL, job, sizeof job, errors) == PMI2_SUCCESS)
        fail("a spawn succeeds");
}

int main(int argc, char **argv)
{
    int spawned, appnum, nodes = argc > 2 ? atoi(argv[2]) : 1;

    if (argc > 3)
        for (int fd = 3; fd < 256; fd++)
            close(fd);
    MUST(PMI2_Init(&spawned, &size, &rank, &appnum));
    if (spawned || size != atoi(getenv("PMI_SIZE")) || rank != atoi(getenv("PMI_RANK")))
        fail("PMI2_Init");
    if (argc > 1 && strcmp(argv[1], "abort") == 0) {
        if (rank == 1)
            PMI2_Abort(7, "no convergence; sorry");
        PMI2_KVS_Fence();
        fail("the fence ended");
    }
    job_attributes(nodes);
    keys();
    node_attributes();
    ring();
    names();
    no_spawn();
    keys();
    MUST(PMI2_Finalize());
    printf("rank %d of %d on %s\n", rank, size, getenv("LATTICE_NODE"));
    return 0;
}
