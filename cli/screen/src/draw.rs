//! Draws the screen. It only reads.

use super::columns::Tone;
use super::events::{Mode, Tab};
use super::model::Screen;
use super::texts::{HELP, empty_text, header, keys_line, status_line, tab_title};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Draws all of it. `is_coloured`: whether colours may be used; the selection and the headings need none.
pub fn draw(screen: &Screen, is_coloured: bool, frame: &mut Frame<'_>) {
    let area = frame.area();
    let mut canvas = Canvas { buffer: frame.buffer_mut(), area, is_coloured };
    match &screen.mode {
        Mode::Text { title, top, .. } => canvas.text(title, &screen.text_lines(), *top, screen.text_page_len()),
        Mode::Help => canvas.text("Keys", &HELP.lines().map(str::to_owned).collect::<Vec<_>>(), 0, screen.text_page_len()),
        Mode::Browse | Mode::Filter | Mode::Confirm { .. } | Mode::DrainReason { .. } => canvas.list(screen),
    }
    canvas.foot(screen);
}

struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    is_coloured: bool,
}

impl Canvas<'_> {
    fn tone(&self, tone: Tone) -> Style {
        let colour = match tone {
            Tone::Plain => return Style::new(),
            Tone::Good => Color::Green,
            Tone::Waits => Color::Yellow,
            Tone::Bad => Color::Red,
        };
        if self.is_coloured { Style::new().fg(colour) } else { Style::new() }
    }

    /// Writes a text at a place; the part outside the screen is left out.
    fn put(&mut self, x: u16, y: u16, text: &str, style: Style) {
        if y < self.area.height && x < self.area.width {
            self.buffer.set_stringn(x, y, text, usize::from(self.area.width - x), style);
        }
    }

    /// Writes a text at the right end of a line, if it is free from `left` characters on.
    fn put_right(&mut self, y: u16, left: usize, text: &str) {
        let width = text.chars().count();
        if left + 1 + width <= usize::from(self.area.width) {
            let x = self.area.width - u16::try_from(width).unwrap_or(self.area.width);
            self.put(x, y, text, Style::new());
        }
    }

    /// A whole line in reverse.
    fn mark(&mut self, y: u16) {
        if y < self.area.height {
            let line = Rect { x: 0, y, width: self.area.width, height: 1 };
            self.buffer.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
        }
    }

    fn list(&mut self, screen: &Screen) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        for (y, (left, right)) in (0..).zip(header(screen)) {
            self.put(0, y, &left, if y == 0 { bold } else { Style::new() });
            self.put_right(y, left.chars().count(), &right);
        }
        let mut x = 0_u16;
        for tab in Tab::ALL {
            let title = tab_title(screen, tab);
            let style = if tab == screen.tab { bold.add_modifier(Modifier::REVERSED) } else { Style::new() };
            self.put(x, 2, &title, style);
            x = x.saturating_add(u16::try_from(title.chars().count()).unwrap_or(u16::MAX));
        }
        let list = screen.list();
        let (heading, lines) = list.lines(self.area.width.into());
        let selected = screen.selected(&list.rows);
        if lines.is_empty() {
            self.put(0, 3, empty_text(screen), Style::new());
            return;
        }
        self.put(0, 3, &heading, bold);
        let page = screen.page_len();
        let first = selected.unwrap_or(0) / page * page;
        for (y, at) in (4..).zip(first..lines.len().min(first + page)) {
            let style = self.tone(list.rows[at].tone);
            self.put(0, y, &lines[at], style);
            if selected == Some(at) {
                self.mark(y);
            }
        }
        if lines.len() > page {
            let shown = format!("{}-{} of {}", first + 1, lines.len().min(first + page), lines.len());
            self.put_right(2, x.into(), &shown);
        }
    }

    fn text(&mut self, title: &str, lines: &[String], top: usize, page: usize) {
        self.put(0, 0, title, Style::new().add_modifier(Modifier::BOLD));
        // The screen may have grown since the text was moved.
        let top = top.min(lines.len().saturating_sub(page));
        for (y, line) in (2..).zip(lines.iter().skip(top).take(page)) {
            self.put(0, y, line, Style::new());
        }
        if lines.len() > page {
            let shown = format!("{}-{} of {}", top + 1, lines.len().min(top + page), lines.len());
            self.put_right(0, title.chars().count(), &shown);
        }
    }

    /// The last two lines, over whatever a small screen shows there.
    fn foot(&mut self, screen: &Screen) {
        let (status, tone) = status_line(screen);
        let width = usize::from(self.area.width);
        let style = self.tone(tone);
        // The end of what is typed is shown, not its beginning.
        let is_typed = matches!(screen.mode, Mode::Filter | Mode::DrainReason { .. });
        let over = status.chars().count().saturating_sub(width);
        let status: String = if is_typed { status.chars().skip(over).collect() } else { status };
        let y = self.area.height.saturating_sub(2);
        self.put(0, y, &format!("{status:width$}"), style);
        self.put(0, self.area.height.saturating_sub(1), &format!("{:width$}", keys_line(screen)), Style::new().add_modifier(Modifier::DIM));
    }
}
