//! Curves over a size, as SVG: the size on a logarithmic or a linear axis, the values on a linear one that begins at zero,
//! so that a curve that looks flat is flat.

use anyhow::{Result, ensure};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
/// The edges of the plot inside the picture.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 372.0;
/// About how many lines mark values.
const TICKS: f64 = 5.0;
/// How many curves can be told apart.
pub const CURVES_MAX: usize = 5;
const COLOURS: [&str; CURVES_MAX] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555"];

/// Some curves in one picture.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// What the size counts.
    pub size_name: &'static str,
    /// How sizes are placed.
    pub scale: Scale,
    /// The values' unit.
    pub unit: &'static str,
    /// At most [`CURVES_MAX`].
    pub curves: Vec<Curve>,
}

/// How sizes are placed on their axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Few sizes, by their ratios: each is marked on the axis and on the curves.
    Ratios,
    /// Many sizes, from 0, by their differences.
    Differences,
}

/// One curve: values by size, each size larger than the one before.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Size and value.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// The picture. An error if there is nothing to draw, or a value cannot be drawn: a size that is not positive (on an
    /// axis of differences, negative), a value that is negative or not a number.
    pub fn svg(&self) -> Result<String> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        ensure!(points().next().is_some(), "{}: there is no value to draw", self.title);
        ensure!(self.curves.len() <= CURVES_MAX, "{}: {} curves, at most {} can be told apart", self.title, self.curves.len(), CURVES_MAX);
        for (size, value) in points() {
            let has_place = match self.scale {
                Scale::Ratios => *size > 0.0,
                Scale::Differences => *size >= 0.0,
            };
            let is_drawable = size.is_finite() && has_place && value.is_finite() && *value >= 0.0;
            ensure!(is_drawable, "{}: {value} at {size} cannot be drawn", self.title);
        }
        let axes = Axes::around(self.scale, points());
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}</text>\n",
            title = escaped(&self.title)
        );
        self.draw_axes(&axes, &mut out)?;
        for (number, (curve, colour)) in self.curves.iter().zip(COLOURS).enumerate() {
            draw_curve(curve, &axes, colour, number, &mut out)?;
        }
        out.push_str("</svg>\n");
        Ok(out)
    }

    fn draw_axes(&self, axes: &Axes, out: &mut String) -> Result<()> {
        for value in axes.ticks() {
            let y = axes.y(value);
            writeln!(out, "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>")?;
            let text = format!("{} {}", short(value), self.unit);
            writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 8.0, y + 4.0, escaped(&text))?;
        }
        for size in self.marked_sizes(axes) {
            let x = axes.x(size);
            writeln!(out, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\" stroke=\"#eee\"/>")?;
            writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", BOTTOM + 16.0, short(size))?;
        }
        let (x, y) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 36.0);
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"#666\">{}</text>", escaped(self.size_name))?;
        Ok(())
    }

    /// The sizes with a line and a number.
    fn marked_sizes(&self, axes: &Axes) -> Vec<f64> {
        match self.scale {
            Scale::Ratios => {
                let mut sizes: Vec<f64> = self.curves.iter().flat_map(|curve| curve.points.iter().map(|(size, _)| *size)).collect();
                sizes.sort_by(f64::total_cmp);
                sizes.dedup();
                sizes
            }
            Scale::Differences => {
                let (step, last) = steps(axes.sizes.1);
                multiples(step, last).filter(|size| *size <= axes.sizes.1).collect()
            }
        }
    }
}

fn draw_curve(curve: &Curve, axes: &Axes, colour: &str, number: usize, out: &mut String) -> Result<()> {
    let at: Vec<String> = curve.points.iter().map(|(size, value)| format!("{:.1},{:.1}", axes.x(*size), axes.y(*value))).collect();
    writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", at.join(" "))?;
    let marked = match axes.scale {
        Scale::Ratios => &curve.points[..],
        Scale::Differences => &[],
    };
    for (size, value) in marked {
        let (x, y) = (axes.x(*size), axes.y(*value));
        let about = format!("{}: {} at {}", curve.name, short(*value), short(*size));
        writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}</title></circle>", escaped(&about))?;
    }
    // Two rows of three names above the plot.
    let (column, row) = ((number % 3) as f64, (number / 3) as f64);
    let (x, y) = (LEFT + column * (RIGHT - LEFT) / 3.0, 46.0 + row * 16.0);
    writeln!(out, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>", y - 6.0)?;
    writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>", x + 18.0, escaped(&curve.name))?;
    Ok(())
}

/// The ranges of both axes.
struct Axes {
    scale: Scale,
    sizes: (f64, f64),
    step: f64,
    value_max: f64,
}

impl Axes {
    fn around<'a>(scale: Scale, points: impl Iterator<Item = &'a (f64, f64)>) -> Self {
        let least = match scale {
            Scale::Ratios => f64::INFINITY,
            Scale::Differences => 0.0,
        };
        let (mut sizes, mut largest) = ((least, 0.0f64), 0.0f64);
        for (size, value) in points {
            sizes = (sizes.0.min(*size), sizes.1.max(*size));
            largest = largest.max(*value);
        }
        let (step, value_max) = steps(largest);
        Self { scale, sizes, step, value_max }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        multiples(self.step, self.value_max)
    }

    fn x(&self, size: f64) -> f64 {
        let part = match self.scale {
            Scale::Ratios => (size / self.sizes.0).ln() / (self.sizes.1 / self.sizes.0).ln(),
            Scale::Differences => size / self.sizes.1,
        };
        // One size alone is in the middle.
        let part = if part.is_finite() { part } else { 0.5 };
        LEFT + part * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - value / self.value_max * (BOTTOM - TOP)
    }
}

/// The distance of about five marks up to this value, and the last mark: 1, 2, 5 or 10 times a power of ten.
fn steps(largest: f64) -> (f64, f64) {
    let largest = if largest > 0.0 { largest } else { 1.0 };
    let power = 10f64.powf((largest / TICKS).log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|part| part * power).find(|step| largest / step <= TICKS).unwrap_or(10.0 * power);
    (step, (largest / step).ceil() * step)
}

fn multiples(step: f64, last: f64) -> impl Iterator<Item = f64> {
    let count = (last / step).round() as u32;
    (0..=count).map(move |number| f64::from(number) * step)
}

/// A number with as many decimals as its size needs.
fn short(value: f64) -> String {
    let decimals = if value.fract().abs() < 1e-9 || value >= 100.0 {
        0
    } else if value >= 1.0 {
        1
    } else {
        3
    };
    format!("{value:.decimals$}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[&[(f64, f64)]]) -> Chart {
        let curves = points.iter().enumerate().map(|(number, points)| Curve { name: format!("c{number} < 2"), points: points.to_vec() });
        Chart { title: "cost & size".into(), size_name: "agents", scale: Scale::Ratios, unit: "KB/s", curves: curves.collect() }
    }

    #[test]
    fn sizes_are_spaced_by_their_ratio_and_values_begin_at_zero() {
        let svg = chart(&[&[(100.0, 0.0), (1000.0, 2.0), (10_000.0, 4.0)]]).svg().unwrap();
        assert!(svg.contains("points=\"84.0,372.0 412.0,224.0 740.0,76.0\""), "{svg}");
        for text in [">10000</text>", ">0 KB/s</text>", ">4 KB/s</text>", "cost &amp; size", "c0 &lt; 2"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(
            (svg.matches("<circle").count(), svg.matches('&').count()),
            (3, svg.matches("&amp;").count() + svg.matches("&lt;").count())
        );
    }

    #[test]
    fn many_sizes_are_spaced_by_their_difference_from_zero_on_and_not_marked() {
        let svg = Chart { scale: Scale::Differences, ..chart(&[&[(0.0, 0.0), (50.0, 4.0), (100.0, 2.0)]]) }.svg().unwrap();
        assert!(svg.contains("points=\"84.0,372.0 412.0,76.0 740.0,224.0\""), "{svg}");
        assert!(svg.contains(">60</text>") && !svg.contains("<circle") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn one_size_and_values_of_zero_can_be_drawn() {
        let svg = chart(&[&[(100.0, 0.0)], &[]]).svg().unwrap();
        assert!(svg.contains("cx=\"412.0\" cy=\"372.0\"") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        for points in [&[][..], &[(0.0, 1.0)], &[(1.0, f64::NAN)], &[(1.0, -1.0)], &[(f64::INFINITY, 1.0)]] {
            assert!(chart(&[points]).svg().is_err(), "{points:?}");
        }
        assert!(chart(&[&[(1.0, 1.0)][..]; 6]).svg().is_err());
    }

    #[test]
    fn about_five_lines_mark_values() {
        for largest in [0.0004, 0.9, 1.0, 7.3, 49.0, 51.0, 123_456.0] {
            let axes = Axes::around(Scale::Ratios, [(1.0, largest)].iter());
            assert!((2..=7).contains(&axes.ticks().count()) && axes.value_max >= largest, "{largest}: {}", axes.step);
        }
    }
}
