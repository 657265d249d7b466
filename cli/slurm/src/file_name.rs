//! Patterns in the names of files that `srun` writes: `%j`, `%4t` and others of Slurm.

/// A name with patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A value; numbers have at least this many digits.
    Value(Field, usize),
}

/// The value of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// `%A`
    Group,
    /// `%a`
    Index,
    /// `%J`
    JobAndStep,
    /// `%j`
    Job,
    /// `%s`
    Step,
    /// `%N`
    Node,
    /// `%n`
    NodeIndex,
    /// `%t`
    Rank,
    /// `%u`
    User,
    /// `%x`
    JobName,
}

/// The index that Slurm writes where there is no job array.
const NO_INDEX: u32 = u32::MAX - 1;
/// The most digits to which a number is padded, as in Slurm.
const PADDING_MAX: usize = 10;

/// The values of the job, which are the same for all of its ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobValues {
    /// The job's number.
    pub number: u64,
    /// The number of its job array, else its own.
    pub group: u64,
    /// Its index in a job array.
    pub index: Option<u32>,
    /// The name of the user.
    pub user: String,
    /// The job's name.
    pub name: String,
    /// The names of its nodes, in its order.
    pub nodes: Vec<String>,
}

/// The values of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankValues<'a> {
    /// Slurm's number of the step.
    pub step: u32,
    /// The rank.
    pub rank: u32,
    /// The name of its node.
    pub node: &'a str,
}

impl FileName {
    /// Parses a name. An unknown pattern is ordinary text, and a backslash makes all patterns ordinary text.
    pub fn parse(text: &str) -> Self {
        if text.contains('\\') {
            return Self { parts: vec![Part::Text(text.replace('\\', ""))] };
        }
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            plain.push_str(before);
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let (width, behind) = after.split_at(digits);
            let letter = behind.chars().next();
            rest = behind;
            match (letter, letter.and_then(Field::of)) {
                (Some(letter), Some(field)) => {
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Value(field, width.parse().unwrap_or(0).min(PADDING_MAX)));
                    rest = &behind[letter.len_utf8()..];
                }
                (Some('%'), None) => {
                    plain.push('%');
                    rest = &behind[1..];
                }
                (Some(_) | None, _) => {
                    plain.push('%');
                    plain.push_str(width);
                }
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() || parts.is_empty() {
            parts.push(Part::Text(plain));
        }
        Self { parts }
    }

    /// Whether each rank, or the ranks of each node, have a file of their own.
    pub fn is_split(&self) -> bool {
        self.has(&[Field::Rank, Field::Node, Field::NodeIndex])
    }

    /// Whether the job's number must be known.
    pub fn needs_number(&self) -> bool {
        self.has(&[Field::Group, Field::Job, Field::JobAndStep])
    }

    /// Whether the job's name must be known.
    pub fn needs_job_name(&self) -> bool {
        self.has(&[Field::JobName])
    }

    /// Whether the order of the job's nodes must be known.
    pub fn needs_nodes(&self) -> bool {
        self.has(&[Field::NodeIndex])
    }

    /// Whether the number of the step must be known.
    pub fn needs_step(&self) -> bool {
        self.has(&[Field::Step, Field::JobAndStep])
    }

    fn has(&self, fields: &[Field]) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Value(field, _) if fields.contains(field)))
    }

    /// The name for this rank.
    pub fn resolve(&self, job: &JobValues, rank: &RankValues<'_>) -> String {
        let value = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Value(field, width) => field.value(*width, job, rank),
        };
        self.parts.iter().map(value).collect()
    }
}

impl Field {
    fn of(letter: char) -> Option<Self> {
        Some(match letter {
            'A' => Self::Group,
            'a' => Self::Index,
            'J' => Self::JobAndStep,
            'j' => Self::Job,
            's' => Self::Step,
            'N' => Self::Node,
            'n' => Self::NodeIndex,
            't' => Self::Rank,
            'u' => Self::User,
            'x' => Self::JobName,
            _ => return None,
        })
    }

    fn value(self, width: usize, job: &JobValues, of: &RankValues<'_>) -> String {
        match self {
            Self::Group => format!("{:0width$}", job.group),
            Self::Index => format!("{:0width$}", job.index.unwrap_or(NO_INDEX)),
            Self::JobAndStep => format!("{:0width$}.{}", job.number, of.step),
            Self::Job => format!("{:0width$}", job.number),
            Self::Step => format!("{:0width$}", of.step),
            Self::Node => of.node.split('.').next().unwrap_or_default().to_owned(),
            Self::NodeIndex => format!("{:0width$}", job.nodes.iter().position(|node| node == of.node).unwrap_or(0)),
            Self::Rank => format!("{:0width$}", of.rank),
            Self::User => job.user.clone(),
            Self::JobName => job.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> String {
        let nodes = ["n1", "n2.cluster"].map(str::to_owned).into();
        let job = JobValues { number: 128, group: 120, index: Some(8), user: "ada".into(), name: "sim".into(), nodes };
        FileName::parse(text).resolve(&job, &RankValues { step: 0, rank: 3, node: "n2.cluster" })
    }

    #[test]
    fn the_examples_of_slurms_manual() {
        assert_eq!(resolved("job%J.out"), "job128.0.out");
        assert_eq!(resolved("job%4j.out"), "job0128.out");
        assert_eq!(resolved("job%j-%2t.out"), "job128-03.out");
    }

    #[test]
    fn each_pattern_has_its_value_and_other_text_stays() {
        assert_eq!(resolved("%A_%a.%s %N %n %u %x"), "120_8.0 n2 1 ada sim");
        assert_eq!(resolved("100%% %q %5 %"), "100% %q %5 %");
        assert_eq!(resolved("%3N%99t"), "n20000000003");
        assert_eq!(resolved("a\\%j"), "a%j");
        assert_eq!(resolved(""), "");
        let alone = FileName::parse("%a").resolve(&JobValues::default(), &RankValues { step: 0, rank: 0, node: "" });
        assert_eq!(alone, "4294967294");
    }

    #[test]
    fn a_name_says_what_it_needs() {
        let of = |text: &str| {
            let name = FileName::parse(text);
            [name.is_split(), name.needs_number(), name.needs_nodes(), name.needs_step(), name.needs_job_name()]
        };
        assert_eq!(of("a.out"), [false; 5]);
        assert_eq!(of("%j_%t.out"), [true, true, false, false, false]);
        assert_eq!(of("%n %J"), [true, true, true, true, false]);
        assert_eq!(of("%x-%s"), [false, false, false, true, true]);
        assert_eq!(of("%%j"), [false; 5]);
    }
}
