/* An MPI program that cannot spawn, publishes and finds names, and continues after both.
 * Needs at least two ranks. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void must(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
}

static void served(int rank)
{
    char port[MPI_MAX_PORT_NAME] = "";

    if (rank == 0)
        must(MPI_Publish_name("ocean", MPI_INFO_NULL, "tag#0$here$") == MPI_SUCCESS, "the name is published");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_Lookup_name("ocean", MPI_INFO_NULL, port) == MPI_SUCCESS, "the name is found");
    must(strcmp(port, "tag#0$here$") == 0, "with its port");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        must(MPI_Unpublish_name("ocean", MPI_INFO_NULL, port) == MPI_SUCCESS, "the name is taken back");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_Lookup_name("ocean", MPI_INFO_NULL, port) != MPI_SUCCESS, "the name is gone");
}

int main(int argc, char **argv)
{
    int rank, sum;
    MPI_Comm children;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    must(MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children, MPI_ERRCODES_IGNORE) != MPI_SUCCESS,
         "a spawn is an error");
    served(rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("went on, sum %d\n", sum);
    MPI_Finalize();
    return 0;
}
