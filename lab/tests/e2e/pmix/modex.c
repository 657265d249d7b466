/* Rank 0 gets by PMIx a value that rank 1 puts on another node, without any fence.
 * modex FOLDER */
#include "files.h"

static void must(int holds, const char *what, pmix_status_t status)
{
    if (!holds) {
        fprintf(stderr, "rank %u: %s: %s (%d)\n", me.rank, what, PMIx_Error_string(status), status);
        exit(9);
    }
}

int main(int argc, char **argv)
{
    pmix_proc_t peer;
    pmix_value_t value, *got = NULL;
    pmix_status_t status;

    folder = argc > 1 ? argv[1] : ".";
    status = PMIx_Init(&me, NULL, 0);
    must(status == PMIX_SUCCESS, "init", status);
    /* The server has the topology, so no rank needs to discover it again. */
    PMIX_LOAD_PROCID(&peer, me.nspace, PMIX_RANK_WILDCARD);
    status = PMIx_Get(&peer, "pmix.hwlocxml2", NULL, 0, &got);
    must(status == PMIX_SUCCESS && got->type == PMIX_STRING && strstr(got->data.string, "<topology") != NULL, "topology", status);
    PMIX_VALUE_RELEASE(got);
    if (me.rank == 1) {
        await("put");
        PMIX_VALUE_LOAD(&value, "card of 1", PMIX_STRING);
        status = PMIx_Put(PMIX_GLOBAL, "card", &value);
        must(status == PMIX_SUCCESS, "put", status);
        status = PMIx_Commit();
        must(status == PMIX_SUCCESS, "commit", status);
        here("has");
        await("go");
    } else {
        PMIX_LOAD_PROCID(&peer, me.nspace, 1);
        here("asks");
        status = PMIx_Get(&peer, "card", NULL, 0, &got);
        must(status == PMIX_SUCCESS && got->type == PMIX_STRING && strcmp(got->data.string, "card of 1") == 0, "get", status);
        PMIX_VALUE_RELEASE(got);
        status = PMIx_Get(&peer, "nothing", NULL, 0, &got);
        must(status != PMIX_SUCCESS, "what was not put is not there", status);
        here("got");
        await("go");
    }
    printf("rank %u is over\n", me.rank);
    fflush(stdout);
    PMIx_Finalize(NULL, 0);
    return 0;
}
