//! The variables that an instance is given, and `$(NAME)` in what it runs. Agents fill them in; admission looks for names
//! that nothing fills in.

use std::collections::BTreeMap;

use api::v1;

use crate::text::env_name;

/// The first port's number.
pub const PORT: &str = "PORT";
/// What every instance is given, whatever is declared.
const ALWAYS: [&str; 4] = ["PATH", "DRIFTLESS_INSTANCE", "DRIFTLESS_NODE", "DRIFTLESS_RUN"];

/// `PORT_<NAME>` for a port's name.
pub fn port_variable(name: &str) -> String {
    let upper = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    "PORT_".chars().chain(upper).collect()
}

/// `$(NAME)` becomes the variable's value and `$$` one dollar sign; a name that isn't set stays as it is written.
pub fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in Pieces(text) {
        match piece {
            Piece::Plain(text) => out.push_str(text),
            Piece::Dollar => out.push('$'),
            Piece::Variable { name, written } => out.push_str(env.get(name).map_or(written, String::as_str)),
        }
    }
    out
}

/// Names in its commands, each with its field, that stay as they are written. Such as hold a small letter are left out: a
/// shell runs `$(date)`. So is whatever a Config may bring.
pub fn unset(template: &v1::InstanceTemplate) -> Vec<(String, &str)> {
    let ports = template.ports.iter().map(|port| port_variable(&port.name));
    let ports: Vec<String> = ports.chain(template.ports.first().map(|_| PORT.to_owned())).collect();
    let is_set = |name: &str| {
        ALWAYS.contains(&name)
            || template.env.contains_key(name)
            || ports.iter().any(|port| port == name)
            || template.env_from.iter().any(|from| name.starts_with(&from.prefix))
    };
    let is_meant = |name: &str| !name.contains(|c: char| c.is_ascii_lowercase());
    let mut unset = Vec::new();
    for (field, part) in parts(template) {
        let names = Pieces(part).filter_map(|piece| match piece {
            Piece::Variable { name, .. } => Some(name),
            Piece::Plain(_) | Piece::Dollar => None,
        });
        unset.extend(names.filter(|name| is_meant(name) && !is_set(name)).map(|name| (field.clone(), name)));
    }
    unset
}

/// Everything in which variables are filled in, by field.
fn parts(template: &v1::InstanceTemplate) -> Vec<(String, &str)> {
    let health = template.health.as_ref();
    let commands = [
        ("command", Some(&template.command)),
        ("health.startup.exec.command", health.and_then(|health| command(health.startup.as_ref()))),
        ("health.readiness.exec.command", health.and_then(|health| command(health.readiness.as_ref()))),
        ("health.liveness.exec.command", health.and_then(|health| command(health.liveness.as_ref()))),
    ];
    let mut parts = Vec::new();
    for (field, command) in commands {
        let each = command.into_iter().flatten().enumerate();
        parts.extend(each.map(|(i, part)| (format!("{field}[{i}]"), part.as_str())));
    }
    parts
}

fn command(check: Option<&v1::Check>) -> Option<&Vec<String>> {
    Some(&check?.exec.as_ref()?.command)
}

enum Piece<'t> {
    Plain(&'t str),
    /// Written as two.
    Dollar,
    Variable {
        name: &'t str,
        /// With what is around it.
        written: &'t str,
    },
}

/// What is left of a text.
struct Pieces<'t>(&'t str);

impl<'t> Iterator for Pieces<'t> {
    type Item = Piece<'t>;

    fn next(&mut self) -> Option<Piece<'t>> {
        let text = self.0;
        let first = text.chars().next()?;
        let named =
            text.strip_prefix("$(").and_then(|rest| Some(rest.split_once(')')?.0)).filter(|name| env_name(name));
        let (piece, end) = match named {
            _ if text.starts_with("$$") => (Piece::Dollar, 2),
            Some(name) => {
                let end = name.len() + "$()".len();
                (Piece::Variable { name, written: &text[..end] }, end)
            }
            None => {
                let end = text[first.len_utf8()..].find('$').map_or(text.len(), |at| at + first.len_utf8());
                (Piece::Plain(&text[..end]), end)
            }
        };
        self.0 = &text[end..];
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_and_dollars_escaped() {
        let env: BTreeMap<String, String> =
            [("PORT", "80"), ("X", "$(PORT)")].map(|(k, v)| (k.into(), v.into())).into();
        for (text, expected) in [
            ("--port=$(PORT)", "--port=80"),
            ("$(X)$(PORT)", "$(PORT)80"),
            ("$$(PORT) $$$$ $", "$(PORT) $$ $"),
            ("$(NONE) $(PORT", "$(NONE) $(PORT"),
            ("$(echo $(PORT))", "$(echo 80)"),
            ("$($(PORT)$", "$(80$"),
            ("ü$(PORT)ü$ü", "ü80ü$ü"),
            ("", ""),
        ] {
            assert_eq!(expand(text, &env), expected, "{text}");
        }
        assert_eq!(port_variable("admin-api"), "PORT_ADMIN_API");
    }

    #[test]
    fn names_that_nothing_fills_in_are_found() {
        let exec = v1::ExecCheck { command: vec!["$(GONE)".into()] };
        let check = v1::Check { exec: Some(exec), ..Default::default() };
        let command = "$(PORT) $(PORT_A_B) $(X) $$(NO) $(date) $(DRIFTLESS_NODE) $(NOPE)$(PORT_B) $(DB_HOST)";
        let mut template = v1::InstanceTemplate {
            command: command.split(' ').map(str::to_owned).collect(),
            env: [("X".to_owned(), "1".to_owned())].into(),
            ports: vec![v1::Port { name: "a-b".into(), port: 0 }],
            health: Some(v1::Health { liveness: Some(check), ..Default::default() }),
            ..Default::default()
        };
        let found = |template: &v1::InstanceTemplate| {
            unset(template).into_iter().map(|(field, name)| format!("{field} {name}")).collect::<Vec<_>>()
        };
        let liveness = "health.liveness.exec.command[0] GONE";
        assert_eq!(found(&template), ["command[6] NOPE", "command[6] PORT_B", "command[7] DB_HOST", liveness]);
        template.env_from = vec![v1::EnvFrom { config: "db".into(), prefix: "DB_".into() }];
        assert_eq!(found(&template), ["command[6] NOPE", "command[6] PORT_B", liveness]);
        template.ports.clear();
        assert_eq!(found(&template)[..2], ["command[0] PORT", "command[1] PORT_A_B"]);
        template.env_from[0].prefix.clear();
        assert_eq!(found(&template), [""; 0]);
    }
}
