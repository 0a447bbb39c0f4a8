//! The terminal of `leasehold top`.

use std::path::Path;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Clear, Paragraph, Row as TableRow, Table as Grid, Tabs};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

use super::view::{self, Order, Sample, View};
use crate::Failure;

/// The width of a column of numbers.
const NUMBER: u16 = 12;
/// Keys that wait to be read.
const KEYS_MAX: usize = 64;

const HELP: &str = "\
q, Esc       end
Tab, 1 to 4  choose the table
left, right  choose the column to sort by
r            reverse the order
up, down     scroll
/            show names that contain a text; Enter ends it
p            pause
h, ?         show these keys";

/// The choices of the user.
#[derive(Debug, Default)]
struct Choices {
    table: usize,
    order: Order,
    scroll: usize,
    filter: String,
    /// The filter is being typed.
    is_typing: bool,
    is_paused: bool,
    shows_help: bool,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Draw,
    End,
}

/// Shows the process until the user ends it.
///
/// # Errors
/// If the process has ended, or if there is no terminal.
pub async fn run(directory: &Path, interval: Duration) -> Result<(), Failure> {
    // Before the screen is taken, so that a message stays on it.
    let first = super::look(directory).await?;
    let no_terminal = |error: std::io::Error| {
        Failure(format!("cannot draw: {error}; run this in a terminal, or pass --once or --json"))
    };
    let mut terminal = ratatui::try_init().map_err(no_terminal)?;
    let result = show(&mut terminal, directory, interval, first).await;
    ratatui::restore();
    result
}

async fn show(
    terminal: &mut DefaultTerminal,
    directory: &Path,
    interval: Duration,
    mut before: Sample,
) -> Result<(), Failure> {
    let mut choices = Choices::default();
    let mut view = View::between(&before, &before);
    let mut keys = keys();
    let mut looks = tokio::time::interval(interval);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is at once.
    looks.tick().await;
    loop {
        let drawn = terminal.draw(|frame| draw(frame, &view, &mut choices));
        drawn.map_err(|error| Failure(format!("cannot draw: {error}; pass --once")))?;
        tokio::select! {
            key = keys.recv() => match key {
                Some(key) if choices.press(key, &view) == Next::Draw => {}
                _ => return Ok(()),
            },
            _ = looks.tick(), if !choices.is_paused => {
                let now = super::look(directory).await?;
                view = View::between(&before, &now);
                before = now;
            }
        }
    }
}

/// The keys that the user presses. Other events of the terminal draw again.
fn keys() -> mpsc::Receiver<Option<KeyEvent>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    // It waits inside a system call, and ends with the process.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = if let Event::Key(key) = event { Some(key) } else { None };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Choices {
    fn press(&mut self, key: Option<KeyEvent>, view: &View) -> Next {
        let Some(key) = key.filter(|key| key.kind != KeyEventKind::Release) else { return Next::Draw };
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Next::End;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Next::Draw;
        }
        if std::mem::take(&mut self.shows_help) {
            return Next::Draw;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Tab => self.choose((self.table + 1) % view.tables.len()),
            KeyCode::BackTab => self.choose((self.table + view.tables.len() - 1) % view.tables.len()),
            KeyCode::Char(digit @ '1'..='9') => {
                let table = digit as usize - '1' as usize;
                if table < view.tables.len() {
                    self.choose(table);
                }
            }
            KeyCode::Left => self.order.column = self.order.column.saturating_sub(1),
            KeyCode::Right => {
                self.order.column = (self.order.column + 1).min(view.tables[self.table].columns.len() - 1);
            }
            KeyCode::Char('r') => self.order.is_reverse = !self.order.is_reverse,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll += 1,
            KeyCode::Char('/') => {
                self.filter.clear();
                self.is_typing = true;
            }
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('h' | '?') => self.shows_help = true,
            _ => {}
        }
        Next::Draw
    }

    fn choose(&mut self, table: usize) {
        *self = Choices { table, is_paused: self.is_paused, ..Choices::default() };
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Enter => self.is_typing = false,
            _ => {}
        }
        self.scroll = 0;
    }
}

fn draw(frame: &mut Frame, view: &View, choices: &mut Choices) {
    let troubles = view.troubles.iter().map(|trouble| format!("trouble   {trouble}"));
    let head: Vec<String> = view.head.iter().cloned().chain(troubles).collect();
    let rows = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let parts = [Constraint::Length(rows), Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
    let [top, tabs, table, foot] = Layout::vertical(parts).areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let line = |(at, text): (usize, &String)| {
        let text = crate::output::escaped(text, &[]).into_owned();
        if at == 0 || at >= view.head.len() { Line::styled(text, bold) } else { Line::raw(text) }
    };
    frame.render_widget(Paragraph::new(head.iter().enumerate().map(line).collect::<Vec<_>>()), top);
    let titles = view.tables.iter().zip(1..).map(|(table, number)| format!("{number} {}", table.title));
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Tabs::new(titles).select(choices.table).highlight_style(reversed), tabs);
    draw_table(frame, table, view, choices);
    let filter = if choices.filter.is_empty() && !choices.is_typing {
        String::new()
    } else {
        format!("   filter: {}{}", choices.filter, if choices.is_typing { "_" } else { "" })
    };
    let paused = if choices.is_paused { "   paused" } else { "" };
    frame.render_widget(Paragraph::new(format!("q end   h keys{filter}{paused}")), foot);
    if choices.shows_help {
        let area = middle(frame.area());
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(HELP), area);
    }
}

fn draw_table(frame: &mut Frame, area: Rect, view: &View, choices: &mut Choices) {
    let table = &view.tables[choices.table];
    let rows = view::sorted(&table.rows, choices.order, &choices.filter);
    choices.scroll = choices.scroll.min(rows.len().saturating_sub(1));
    // The name is last: it may be long, and is cut at the edge.
    let right = |text: String| Cell::from(Line::raw(text).alignment(Alignment::Right));
    let title = |(at, name): (usize, &&str)| {
        let mark = if at != choices.order.column {
            ""
        } else if choices.order.is_reverse {
            " ^"
        } else {
            " v"
        };
        if at == 0 { Cell::from(format!("  {name}{mark}")) } else { right(format!("{name}{mark}")) }
    };
    let mut titles: Vec<Cell> = table.columns.iter().enumerate().map(title).collect();
    titles.rotate_left(1);
    let row = |row: &&view::Row| {
        let name = format!("  {}", crate::output::escaped(&row.name, &[]));
        let numbers = row.numbers.iter().map(|number| right(number.to_string()));
        TableRow::new(numbers.chain(std::iter::once(Cell::from(name))))
    };
    let numbers = table.columns.len() - 1;
    let widths = std::iter::repeat_n(Constraint::Length(NUMBER), numbers).chain([Constraint::Fill(1)]);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let grid = Grid::new(rows.iter().skip(choices.scroll).map(row), widths);
    frame.render_widget(grid.header(TableRow::new(titles).style(bold)), area);
}

/// A part in the middle, large enough for the keys.
fn middle(area: Rect) -> Rect {
    let lines = HELP.lines();
    let width = lines.clone().map(str::len).max().unwrap_or(0) as u16;
    area.centered(
        Constraint::Length(width.min(area.width)),
        Constraint::Length((lines.count() as u16).min(area.height)),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn sample(files: usize) -> Sample {
        let file = |number: usize| json!({ "path": format!("/file{number}\u{1b}[2J"), "calls": number, "read_bytes": 0, "written_bytes": 0 });
        let usage =
            json!({ "status": { "role": "mount" }, "files": (0..files).map(file).collect::<Vec<_>>() });
        Sample { at: Instant::now(), usage }
    }

    fn press(choices: &mut Choices, view: &View, code: KeyCode) -> Next {
        choices.press(Some(KeyEvent::new(code, KeyModifiers::NONE)), view)
    }

    fn shown(view: &View, choices: &mut Choices, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, choices)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn keys_choose_what_is_shown() {
        let view = View::between(&sample(30), &sample(30));
        let mut choices = Choices::default();
        assert!(!shown(&view, &mut choices, 100, 20).contains("/file"));
        press(&mut choices, &view, KeyCode::Char('2'));
        for _ in 0..3 {
            press(&mut choices, &view, KeyCode::Right);
        }
        let screen = shown(&view, &mut choices, 100, 20);
        assert!(screen.contains("/file29\\u{1b}[2J") && !screen.contains("/file1\\u"), "{screen}");
        assert!(screen.contains("calls v"), "{screen}");
        press(&mut choices, &view, KeyCode::Char('r'));
        assert!(shown(&view, &mut choices, 100, 20).contains("/file1\\u"));
        for c in "/e17".chars() {
            press(&mut choices, &view, KeyCode::Char(c));
        }
        let screen = shown(&view, &mut choices, 100, 20);
        assert!(
            screen.contains("filter: e17_") && screen.contains("/file17") && !screen.contains("/file1\\u")
        );
        press(&mut choices, &view, KeyCode::Enter);
        press(&mut choices, &view, KeyCode::Char('h'));
        assert!(shown(&view, &mut choices, 100, 20).contains("choose the table"));
        press(&mut choices, &view, KeyCode::Char('x'));
        assert!(!shown(&view, &mut choices, 100, 20).contains("choose the table"));
        assert_eq!(press(&mut choices, &view, KeyCode::Char('q')), Next::End);
    }

    #[test]
    fn any_size_of_a_window_will_do() {
        let view = View::between(&sample(3), &sample(3));
        for (width, height) in [(1, 1), (5, 3), (20, 6), (80, 24), (300, 100)] {
            for table in 0..view.tables.len() {
                let mut choices = Choices { table, scroll: 1000, shows_help: true, ..Choices::default() };
                shown(&view, &mut choices, width, height);
            }
        }
    }
}
