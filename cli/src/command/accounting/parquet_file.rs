//! Ended work as a Parquet file: a flat table with the columns of the CSV file. Tags are JSON text, times milliseconds since
//! 1970 in UTC, and use is in milliseconds.

use lattice_api::v1::HistoryRecord;
use lattice_cli_session::failure::Failure;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

/// The rows of a row group, which are held in memory.
const GROUP_ROWS: usize = 64 * 1024;

/// The cells of a column. In a column with `If`, an empty one is null.
enum Cells {
    Number(fn(&HistoryRecord) -> u64),
    NumberIf(fn(&HistoryRecord) -> Option<i64>),
    Text(fn(&HistoryRecord) -> String),
    TextIf(fn(&HistoryRecord) -> String),
}

/// The columns: their declarations and their cells.
static COLUMNS: [(&str, Cells); 25] = [
    ("REQUIRED INT64 sequence", Cells::Number(|work| work.sequence)),
    ("REQUIRED BYTE_ARRAY id (UTF8)", Cells::Text(|work| work.id.clone())),
    ("REQUIRED BYTE_ARRAY name (UTF8)", Cells::Text(|work| work.name.clone())),
    ("REQUIRED BYTE_ARRAY user (UTF8)", Cells::Text(|work| work.user.clone())),
    ("REQUIRED INT64 uid", Cells::Number(|work| work.uid.into())),
    ("OPTIONAL BYTE_ARRAY tenant (UTF8)", Cells::TextIf(|work| work.tenant.clone())),
    ("OPTIONAL BYTE_ARRAY project (UTF8)", Cells::TextIf(|work| work.project.clone())),
    ("OPTIONAL BYTE_ARRAY vcluster (UTF8)", Cells::TextIf(|work| work.vcluster.clone())),
    ("REQUIRED BYTE_ARRAY tags (UTF8)", Cells::Text(tags)),
    ("REQUIRED BYTE_ARRAY state (UTF8)", Cells::Text(|work| work.state.clone())),
    ("OPTIONAL BYTE_ARRAY reason (UTF8)", Cells::TextIf(|work| work.reason.clone())),
    ("OPTIONAL INT64 exit_code", Cells::NumberIf(|work| work.exit_code.map(i64::from))),
    ("REQUIRED BYTE_ARRAY nodes (UTF8)", Cells::Text(|work| work.nodes.clone())),
    ("REQUIRED INT64 node_count", Cells::Number(|work| work.node_count.into())),
    ("OPTIONAL INT64 submitted_at (TIMESTAMP_MILLIS)", Cells::NumberIf(|work| time(work.submitted_at_ms))),
    ("OPTIONAL INT64 claimed_at (TIMESTAMP_MILLIS)", Cells::NumberIf(|work| time(work.claimed_at_ms))),
    ("OPTIONAL INT64 started_at (TIMESTAMP_MILLIS)", Cells::NumberIf(|work| time(work.started_at_ms))),
    ("OPTIONAL INT64 ended_at (TIMESTAMP_MILLIS)", Cells::NumberIf(|work| time(work.ended_at_ms))),
    ("REQUIRED INT64 requeue_count", Cells::Number(|work| work.requeue_count.into())),
    ("REQUIRED INT64 preempted_count", Cells::Number(|work| work.preempted_count.into())),
    ("REQUIRED INT64 node_ms", Cells::Number(|work| work.node_ms)),
    ("REQUIRED INT64 gpu_ms", Cells::Number(|work| work.gpu_ms)),
    ("REQUIRED INT64 core_ms", Cells::Number(|work| work.core_ms)),
    ("OPTIONAL BYTE_ARRAY part_of (UTF8)", Cells::TextIf(|work| work.part_of.clone())),
    ("OPTIONAL INT64 job", Cells::NumberIf(|work| Some(number(work.job)).filter(|job| *job > 0))),
];

fn tags(work: &HistoryRecord) -> String {
    let tags: BTreeMap<&String, &String> = work.tags.iter().collect();
    serde_json::json!(tags).to_string()
}

fn time(ms: u64) -> Option<i64> {
    Some(number(ms)).filter(|ms| *ms > 0)
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A file that is being written, row group after row group.
pub(super) struct ParquetFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    rows: Vec<HistoryRecord>,
}

impl<W: Write + Send> ParquetFile<W> {
    pub(super) fn begin(to: W) -> Result<Self, Failure> {
        let declarations: String = COLUMNS.iter().map(|(declaration, _)| format!("{declaration};\n")).collect();
        let schema = parse_message_type(&format!("message ended_work {{\n{declarations}}}")).map_err(failed)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer = SerializedFileWriter::new(to, Arc::new(schema), Arc::new(properties)).map_err(failed)?;
        Ok(Self { writer, rows: Vec::new() })
    }

    /// Adds rows; writes those that fill a row group.
    pub(super) fn add(&mut self, work: Vec<HistoryRecord>) -> Result<(), Failure> {
        for work in work {
            self.rows.push(work);
            if self.rows.len() == GROUP_ROWS {
                self.write_group().map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Writes the remaining rows, and the end of the file.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        if !self.rows.is_empty() {
            self.write_group().map_err(failed)?;
        }
        self.writer.close().map_err(failed)?;
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.writer.next_row_group()?;
        for (declaration, cells) in &COLUMNS {
            let missing = || ParquetError::General(format!("the file has no column {declaration}"));
            let mut column = group.next_column()?.ok_or_else(missing)?;
            match cells {
                Cells::Number(of) => {
                    let values: Vec<i64> = rows.iter().map(|row| number(of(row))).collect();
                    column.typed::<Int64Type>().write_batch(&values, None, None)?;
                }
                Cells::NumberIf(of) => {
                    let all: Vec<Option<i64>> = rows.iter().map(of).collect();
                    let values: Vec<i64> = all.iter().copied().flatten().collect();
                    column.typed::<Int64Type>().write_batch(&values, Some(&levels(&all)), None)?;
                }
                Cells::Text(of) => {
                    let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(of(row).into_bytes())).collect();
                    column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                }
                Cells::TextIf(of) => {
                    let all: Vec<Option<String>> = rows.iter().map(|row| Some(of(row)).filter(|text| !text.is_empty())).collect();
                    let levels = levels(&all);
                    let values: Vec<ByteArray> = all.into_iter().flatten().map(|text| ByteArray::from(text.into_bytes())).collect();
                    column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
        Ok(())
    }
}

/// The definition levels of an optional column: 1 where there is a value.
fn levels<T>(cells: &[Option<T>]) -> Vec<i16> {
    cells.iter().map(|cell| i16::from(cell.is_some())).collect()
}

fn failed(error: ParquetError) -> Failure {
    Failure::other(format!("cannot write the Parquet file: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    use std::fs::File;

    #[test]
    fn rows_are_read_back_as_they_were_in_groups() {
        let path = std::env::temp_dir().join(format!("lattice-parquet-{}", uuid::Uuid::new_v4()));
        let mut file = ParquetFile::begin(File::create(&path).unwrap()).unwrap();
        let record = |sequence: u64| HistoryRecord {
            sequence,
            name: "night".into(),
            job: sequence % 2,
            exit_code: Some(-9).filter(|_| sequence == 1),
            tags: [("run".to_owned(), "4".to_owned())].into(),
            node_ms: 90_500,
            ..Default::default()
        };
        let rows = GROUP_ROWS as u64 + 1;
        file.add((1..=rows).map(record).collect()).unwrap();
        file.end().unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let metadata = reader.metadata();
        assert_eq!((metadata.num_row_groups(), metadata.file_metadata().num_rows()), (2, GROUP_ROWS as i64 + 1));
        let names: Vec<String> = metadata.file_metadata().schema().get_fields().iter().map(|field| field.name().to_owned()).collect();
        assert_eq!(names.len(), COLUMNS.len());
        let first = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
        assert_eq!((first.get_long(0).unwrap(), first.get_string(2).unwrap().as_str()), (1, "night"));
        assert_eq!((first.get_string(8).unwrap().as_str(), first.get_long(11).unwrap()), ("{\"run\":\"4\"}", -9));
        assert_eq!((first.get_long(20).unwrap(), first.get_long(24).unwrap()), (90_500, 1));
        assert!(first.get_string(5).is_err(), "no tenant is null");
        std::fs::remove_file(&path).unwrap();
    }
}
