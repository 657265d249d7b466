/* Names that the ranks of an Open MPI program publish for each other. Needs at least two ranks. */
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

int main(int argc, char **argv)
{
    int rank;
    char port[MPI_MAX_PORT_NAME] = "";

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (rank == 1) {
        must(MPI_Publish_name("ocean", MPI_INFO_NULL, "here;1") == MPI_SUCCESS, "the name is published");
        must(MPI_Publish_name("ocean", MPI_INFO_NULL, "there") != MPI_SUCCESS, "and once");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_Lookup_name("ocean", MPI_INFO_NULL, port) == MPI_SUCCESS, "the name is found");
    must(strcmp(port, "here;1") == 0, "with its port");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        must(MPI_Unpublish_name("ocean", MPI_INFO_NULL, port) == MPI_SUCCESS, "the name is taken back");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_Lookup_name("ocean", MPI_INFO_NULL, port) != MPI_SUCCESS, "the name is gone");
    printf("rank %d knows\n", rank);
    MPI_Finalize();
    return 0;
}
