//! Reads the functions out of the C header, as a C parser would see them.

use std::collections::BTreeSet;

/// The header without comments and preprocessor lines.
fn declarations(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some(start) = rest.find("/*") {
        code += &rest[..start];
        let end = rest[start..].find("*/").expect("comments end");
        rest = &rest[start + end + 2..];
    }
    code += rest;
    let mut joined = code.replace("\\\n", " ");
    joined = joined.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    joined
}

/// (name, parameters) of every function the header declares.
pub fn functions(header: &str) -> Vec<(String, String)> {
    declarations(header)
        .split(';')
        .filter_map(|declaration| {
            let declaration = declaration.rsplit('}').next()?;
            let open = declaration.find('(')?;
            let name = declaration[..open].trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            let is_function = name.starts_with("smp_") && !declaration.contains("typedef");
            is_function.then(|| (name.to_string(), declaration[open..].to_string()))
        })
        .collect()
}

pub fn function_names(header: &str) -> BTreeSet<String> {
    functions(header).into_iter().map(|(name, _)| name).collect()
}
