/* One rank of an Open MPI program: world | abort | die | leave | late FILE. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const char *own = getenv("LATTICE_RANK");
    /* The last rank prints a line once all others have started, and enters MPI_Init when its file exists. */
    if (strcmp(what, "late") == 0 && own && strcmp(own, "3") == 0) {
        const char *server = getenv("PMIX_SERVER_URI41");
        char name[4096];
        for (int other = 0; other < 3; other++) {
            snprintf(name, sizeof name, "%s-%d", argv[2], other);
            while (access(name, F_OK) != 0)
                usleep(10000);
        }
        printf("the others wait, served at %s\n", server ? server : "nothing");
        fflush(stdout);
        while (access(argv[2], F_OK) != 0)
            usleep(10000);
    } else if (strcmp(what, "late") == 0 && own) {
        char name[4096];
        snprintf(name, sizeof name, "%s-%s", argv[2], own);
        fclose(fopen(name, "w"));
    }
    MPI_Init(&argc, &argv);
    int rank, size, beside, received = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm shared;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared);
    MPI_Comm_size(shared, &beside);
    long mine = rank + 1, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &received, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    printf("rank %d of %d, %d on its node, sum %ld, after rank %d\n", rank, size, beside, sum, received);
    if (strcmp(what, "world") == 0) {
        /* Spawning is not supported: the call returns an error, and the program continues. */
        MPI_Comm children;
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        int refused = MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children, MPI_ERRCODES_IGNORE);
        if (refused == MPI_SUCCESS)
            return 9;
    }
    if (strcmp(what, "abort") == 0 || strcmp(what, "die") == 0 || strcmp(what, "leave") == 0) {
        if (rank == 3) {
            struct timespec now;
            clock_gettime(CLOCK_REALTIME, &now);
            printf("rank 3 misbehaves at %lld ms\n", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
            fflush(stdout);
            if (strcmp(what, "abort") == 0)
                MPI_Abort(MPI_COMM_WORLD, 7);
            if (strcmp(what, "leave") == 0)
                exit(0);
            raise(SIGKILL);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        pause();
    }
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
