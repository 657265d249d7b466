/* Names that three ranks on three nodes publish for each other, by Slurm's PMI-2 library. Between two steps each waits for a file.
 * names2 FOLDER */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank;
static const char *folder;

static void must(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        /* After init this ends the launch: no peer waits for ever. */
        exit(9);
    }
}

static void here(const char *where)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.%d", folder, where, rank);
    file = fopen(path, "w");
    must(file && fclose(file) == 0, "its file is made");
}

static void await(const char *what)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, what);
    while (access(path, F_OK) != 0)
        usleep(10000);
}

static int publish(const char *name, const char *port)
{
    return PMI2_Nameserv_publish(name, NULL, port) == PMI2_SUCCESS;
}

static int is_found(const char *name, const char *expected)
{
    char port[1024] = "";

    return PMI2_Nameserv_lookup(name, NULL, port, sizeof port) == PMI2_SUCCESS && strcmp(port, expected) == 0;
}

int main(int argc, char **argv)
{
    int spawned, size, appnum;
    char port[1024];

    folder = argc > 1 ? argv[1] : ".";
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS || size != 3)
        return 8;
    must(PMI2_Nameserv_lookup("ocean", NULL, port, sizeof port) != PMI2_SUCCESS, "what nobody published is not found");
    PMI2_KVS_Fence();
    if (rank == 1) {
        must(publish("ocean", "port of 1"), "a name is published");
        must(!publish("ocean", "another"), "a name is published once");
    }
    PMI2_KVS_Fence();
    here("published");
    await("go");
    must(is_found("ocean", "port of 1"), "what was acknowledged is found");
    if (rank != 1)
        must(!publish("ocean", "another"), "a name is published once, wherever");
    here("found");
    await("ask");
    here("asks");
    /* All agents were killed before the file "ask" was created. */
    if (rank == 1)
        must(PMI2_Nameserv_unpublish("ocean", NULL) == PMI2_SUCCESS, "a name is taken back");
    if (rank == 2)
        must(publish("air", "port of 2"), "another one is published");
    PMI2_KVS_Fence();
    must(PMI2_Nameserv_lookup("ocean", NULL, port, sizeof port) != PMI2_SUCCESS, "what was taken back is gone");
    must(is_found("air", "port of 2"), "the other one is found");
    printf("rank %d knows\n", rank);
    PMI2_Finalize();
    return 0;
}
