// Ranks that count together; each step's hash includes the previous hashes of all ranks. Requests come by SIGUSR1, or in a call in which
// one rank of each node waits; all ranks save in the same step. After a restart they count to the saved step, and compare the hash.
//
//   chain FILE [LATTICE]      until FILE exists; LATTICE: the CLI that waits in calls, if requests come in calls
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void ask(int number) {
  (void)number;
  asked = 1;
}

static int rank, local;
static MPI_Comm node;
// For the rank that waits in calls: the CLI, the pipe from it, and its output so far.
static const char *lattice;
static FILE *waits;
static char said[4096];

static void fail(int code) {
  fprintf(stderr, "rank %d: %d\n", rank, code);
  MPI_Abort(MPI_COMM_WORLD, code);
}

static uint64_t next(uint64_t hash, uint64_t step) {
  uint64_t all;
  MPI_Allreduce(&hash, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return (hash ^ all ^ step) * 1099511628211u + (uint64_t)rank;
}

static void wait_in_a_call(void) {
  char command[4096];
  snprintf(command, sizeof command, "exec %s checkpoint await", lattice);
  waits = popen(command, "r");
  if (!waits || fcntl(fileno(waits), F_SETFL, O_NONBLOCK)) fail(41);
  said[0] = 0;
}

// Whether the call was answered, with a token and a directory.
static int called(void) {
  if (strchr(said, '\n')) return 1;
  size_t length = strlen(said);
  ssize_t more = read(fileno(waits), said + length, sizeof said - 1 - length);
  if (more > 0) said[length + (size_t)more] = 0;
  return strchr(said, '\n') != NULL;
}

static void save(uint64_t step, uint64_t hash) {
  const char *dir = getenv("LATTICE_CHECKPOINT_DIR");
  char path[4096], token[256];
  FILE *file;
  if (lattice) {
    if (!local && sscanf(said, "%255s", token) != 1) fail(43);
    MPI_Bcast(token, sizeof token, MPI_CHAR, 0, node);
  } else {
    snprintf(path, sizeof path, "%s/request", dir);
    file = fopen(path, "r");
    if (!file || fscanf(file, "%255s", token) != 1) fail(31);
    fclose(file);
  }
  snprintf(path, sizeof path, "%s/%s", dir, token);
  mkdir(path, 0755);
  snprintf(path, sizeof path, "%s/%s/rank-%d", dir, token, rank);
  file = fopen(path, "w");
  if (!file || fprintf(file, "%llu %llu\n", (unsigned long long)step, (unsigned long long)hash) < 0 || fclose(file)) fail(32);
  // All of a node's ranks have written when one of them says so.
  MPI_Barrier(node);
  if (local) return;
  if (lattice) {
    char command[4096];
    pclose(waits);
    snprintf(command, sizeof command, "%s checkpoint done %s --step %llu --files 2", lattice, token, (unsigned long long)step);
    if (system(command)) fail(44);
    wait_in_a_call();
    return;
  }
  snprintf(path, sizeof path, "%s/%s.done", dir, token);
  file = fopen(path, "w");
  if (!file || fprintf(file, "step=%llu\n", (unsigned long long)step) < 0 || fclose(file)) fail(33);
}

int main(int argc, char **argv) {
  struct sigaction heard = {.sa_handler = ask, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &heard, NULL);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local);
  lattice = argc > 2 ? argv[2] : NULL;
  if (lattice && !local) wait_in_a_call();
  const char *from = getenv("LATTICE_RESTORE_FROM"), *attempt = getenv("LATTICE_REQUEUE_COUNT");
  uint64_t step = 0, hash = (uint64_t)rank + 1;
  if (from) {
    char path[4096];
    unsigned long long want, saved, least, most;
    snprintf(path, sizeof path, "%s/rank-%d", from, rank);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%llu %llu", &want, &saved) != 2) fail(21);
    fclose(file);
    MPI_Allreduce(&want, &least, 1, MPI_UNSIGNED_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&want, &most, 1, MPI_UNSIGNED_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (least != most) fail(22);
    while (step < want) hash = next(hash, ++step);
    if (hash != saved) fail(23);
    if (rank == 0) printf("restored %llu\n", want);
  }
  for (;;) {
    // The ranks end, or save, once all of them were told to: so all do it in the same step.
    int heard = lattice ? local || called() : asked;
    int mine[2] = {access(argv[1], F_OK) == 0, heard}, all[2];
    MPI_Allreduce(mine, all, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (all[0]) break;
    if (all[1]) {
      asked = 0;
      save(step, hash);
    }
    hash = next(hash, ++step);
    if (rank == 0) {
      printf("step %s %llu\n", attempt, (unsigned long long)step);
      fflush(stdout);
    }
    usleep(20000);
  }
  if (rank == 0) printf("final %llu\n", (unsigned long long)step);
  MPI_Finalize();
  return 0;
}
