/* Ranks that are notified by PMIx when the last rank dies: before its init, or between init and finalize.
 * deaths FOLDER before|inside */
#include <signal.h>
#include "files.h"

static void heard(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo, pmix_info_t results[],
                  size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *cbdata)
{
    int code = -1;
    pmix_rank_t rank = PMIX_RANK_UNDEF;
    size_t i;

    for (i = 0; i < ninfo; i++) {
        if (PMIX_CHECK_KEY(&info[i], PMIX_EVENT_AFFECTED_PROC))
            rank = info[i].value.data.proc->rank;
        if (PMIX_CHECK_KEY(&info[i], PMIX_EXIT_CODE))
            code = info[i].value.data.integer;
    }
    printf("rank %u hears that %u ended with %d\n", me.rank, rank, code);
    fflush(stdout);
    here("heard");
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, cbdata);
}

int main(int argc, char **argv)
{
    pmix_status_t of = PMIX_ERR_PROC_ABORTED;
    int inside = argc > 2 && strcmp(argv[2], "inside") == 0;
    const char *own = getenv("LATTICE_RANK");

    folder = argc > 1 ? argv[1] : ".";
    /* The ranks that listen ignore SIGTERM, to live until SIGKILL while the launch is ended. */
    signal(SIGTERM, SIG_IGN);
    if (own && strcmp(own, "3") == 0 && !inside) {
        await("die");
        return 5;
    }
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 9;
    if (me.rank == 3) {
        await("die");
        raise(SIGKILL);
    }
    if (PMIx_Register_event_handler(&of, 1, NULL, 0, heard, NULL, NULL) < 0)
        return 7;
    here("listens");
    await("go");
    PMIx_Finalize(NULL, 0);
    return 0;
}
