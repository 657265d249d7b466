/* A rank waits for files that its test creates, and creates files that show its test how far it is. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t me;
static const char *folder;

static void here(const char *where)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.%u", folder, where, me.rank);
    file = fopen(path, "w");
    if (!file || fclose(file) != 0)
        exit(8);
}

static void await(const char *what)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, what);
    while (access(path, F_OK) != 0)
        usleep(10000);
}
