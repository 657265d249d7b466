import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class TwoRanks(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "echo"
    executable_opts = ["hello"]
    num_tasks = 2
    time_limit = "5m"

    @sanity_function
    def both_have_run(self):
        return sn.assert_eq(sn.count(sn.findall("hello", self.stdout)), 2)
